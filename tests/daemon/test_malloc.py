"""Memory that was freed is returned to the system, but only when there is much of it."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import numpy
from zarrfs.daemon.malloc import FreedMemory, anonymous_nbytes, keep_freed_memory

MIB = 1 << 20
keep_freed_memory()
taken = 0
freed = FreedMemory(lambda: taken)

def blocks(count):
    return [numpy.ones(MIB, numpy.uint8) for _ in range(count)]

held = blocks(96)
taken = 96 * MIB
assert not freed.give_back(), "all of it is in use"
last = held[-1]
del held
taken = MIB
assert freed.give_back(), "freed, below a block that is in use"
least = anonymous_nbytes()
assert not freed.give_back(), "there is none"
for _ in range(20):
    blocks(16)
    assert not freed.give_back(), "the next blocks get the same pages"
assert anonymous_nbytes() - least < 64 * MIB
"""


def test_freed_memory_is_returned_once_there_is_much_of_it() -> None:
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True)
