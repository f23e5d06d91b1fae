"""Memory that was freed is returned to the system, but only when there is much of it; limited address space is spared."""

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


_LIMITED = """
import resource
import threading
from pathlib import Path
from zarrfs.daemon.malloc import keep_freed_memory

def used():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

resource.setrlimit(resource.RLIMIT_AS, (used() + (1 << 30), resource.RLIM_INFINITY))
keep_freed_memory()
before = used()
arrived = threading.Barrier(9)
held = []

def work():
    held.append(bytes(100_000))
    arrived.wait()
    arrived.wait()

for _ in range(8):
    threading.Thread(target=work).start()
arrived.wait()
found = used() - before
arrived.wait()
assert found < 32 << 20, found
"""


def test_a_limited_address_space_is_not_spent_on_arenas_and_stacks() -> None:
    subprocess.run([sys.executable, "-c", _LIMITED], check=True)
