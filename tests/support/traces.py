"""Writes by well-known programs, as commands and as the kernel requests recorded for them.

Recorded with libfuse's ``debug`` on Linux 6.18: bash 5.2, coreutils 9.1, sed 4.9, NumPy 2. Programs and kernels may change: the commands
test current behaviour, the requests ensure that these sequences keep working.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

Request = tuple[object, ...]
"""A request of the kernel, with its arguments.

``("open" | "trunc" | "create" | "flush" | "fsync" | "release")``, ``("write", offset, data)``, ``("truncate", size)``,
``("truncate by path", size)``.
"""

OPEN, TRUNC, CREATE, FLUSH, RELEASE = ("open",), ("trunc",), ("create",), ("flush",), ("release",)


@dataclass(frozen=True)
class Trace:
    """``script`` is for bash with the file as ``$1`` and a folder of its own as ``$2``; ``before`` None: no file exists."""

    name: str
    script: str
    before: bytes | None
    after: bytes
    requests: tuple[Request, ...]
    sets: int = 1


def python(code: str) -> str:
    return f"{sys.executable} -c '{code}' \"$1\""


_MMAP = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
fd = os.open(sys.argv[1], os.O_RDWR)
place = libc.mmap(None, 4, 3, 1, fd, 0)
os.close(fd)
ctypes.memmove(place + 1, b"XY", 2)
libc.munmap(ctypes.c_void_p(place), ctypes.c_size_t(4))
"""

_KILLED = """
import os, signal, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_TRUNC)
os.write(fd, b"writ")
os.kill(os.getpid(), signal.SIGKILL)
"""

_TWO_OPENERS = """
import os, sys
one, other = os.open(sys.argv[1], os.O_RDWR), os.open(sys.argv[1], os.O_RDWR)
os.pwrite(one, b"A", 0)
assert os.pread(other, 9, 0) == b"Abcd"
os.pwrite(other, b"D", 3)
os.close(one)
os.pwrite(other, b"C", 2)
os.close(other)
"""

TRACES = (
    Trace("echo", 'echo x > "$1"', None, b"x\n", (CREATE, FLUSH, ("write", 0, b"x\n"), FLUSH, RELEASE)),
    Trace("echo over", 'echo x > "$1"', b"o\n", b"x\n", (TRUNC, FLUSH, ("write", 0, b"x\n"), FLUSH, RELEASE)),
    Trace("append", 'echo x >> "$1"', b"o\n", b"o\nx\n", (OPEN, FLUSH, ("write", 2, b"x\n"), FLUSH, RELEASE)),
    Trace("nothing", ': > "$1"', b"old", b"", (TRUNC, FLUSH, FLUSH, RELEASE)),
    Trace("cp", 'printf abcd > "$2/f"; cp "$2/f" "$1"', None, b"abcd", (CREATE, ("write", 0, b"abcd"), FLUSH, RELEASE)),
    Trace("cp over", 'printf abcd > "$2/f"; cp "$2/f" "$1"', b"old!", b"abcd", (TRUNC, ("write", 0, b"abcd"), FLUSH, RELEASE)),
    Trace("tee", 'printf abcd | tee "$1"', b"old!", b"abcd", (TRUNC, ("write", 0, b"abcd"), FLUSH, RELEASE)),
    Trace("dd", 'printf abcd | dd of="$1"', b"old!", b"abcd", (TRUNC, FLUSH, ("write", 0, b"abcd"), FLUSH, RELEASE)),
    Trace(
        "dd notrunc",
        'printf BC | dd of="$1" bs=1 seek=1 conv=notrunc',
        b"abcd",
        b"aBCd",
        (OPEN, FLUSH, ("write", 1, b"B"), ("write", 2, b"C"), FLUSH, RELEASE),
    ),
    Trace(
        "dd seek",
        'printf cd | dd of="$1" bs=2 seek=1',
        b"abXYZ",
        b"abcd",
        (OPEN, FLUSH, ("truncate", 2), ("write", 2, b"cd"), FLUSH, RELEASE),
    ),
    Trace(
        "numpy.tofile",
        python('import numpy, sys; numpy.arange(97, 101, dtype="u1").tofile(sys.argv[1])'),
        b"old!",
        b"abcd",
        (TRUNC, ("write", 0, b"abcd"), FLUSH, FLUSH, RELEASE),
    ),
    Trace(
        "mmap written after close",
        python(_MMAP),
        b"abcd",
        b"aXYd",
        (OPEN, FLUSH, ("write", 0, b"aXYd"), RELEASE),
    ),
    Trace(
        "truncate by path",
        python("import os, sys; os.truncate(sys.argv[1], 2)"),
        b"abcd",
        b"ab",
        (("truncate by path", 2),),
    ),
    Trace("truncate by descriptor", 'truncate -s 2 "$1"', b"abcd", b"ab", (OPEN, ("truncate", 2), FLUSH, RELEASE)),
    Trace(
        "two openers",
        python(_TWO_OPENERS),
        b"abcd",
        b"AbCD",
        (OPEN, OPEN, ("write", 0, b"A"), ("write", 3, b"D"), FLUSH, RELEASE, ("write", 2, b"C"), FLUSH, RELEASE),
        sets=2,
    ),
    Trace("killed", f"{python(_KILLED)}; true", b"old!", b"writ", (TRUNC, ("write", 0, b"writ"), FLUSH, RELEASE)),
)
