"""Opens files below a folder within the folder's file system: openat2(2), which Python does not have.

The kernel refuses a mount on the way during the lookup itself. A check of the mount table beforehand would miss a mount that comes
later, and one that comes together with a renamed folder.
"""

from __future__ import annotations

import ctypes
import os

from zarrfs.stores.folder.names import Parts

# <linux/openat2.h>. All architectures have this number.
_SYS_OPENAT2 = 437
_RESOLVE_NO_XDEV, _RESOLVE_NO_SYMLINKS = 0x01, 0x04


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
_hows: dict[int, _OpenHow] = {}


def open_within(folder: int, parts: Parts, flags: int) -> int:
    """Open ``parts`` below the descriptor ``folder``; return a descriptor.

    Raises `OSError`: EXDEV for a mount on the way or at its end, ELOOP for a symbolic link on the way, ENOSYS on kernels older than 5.6,
    EPERM under a system call filter older than that."""
    how = _hows.get(flags)
    if how is None:
        how = _hows[flags] = _OpenHow(flags | os.O_CLOEXEC, 0, _RESOLVE_NO_XDEV | _RESOLVE_NO_SYMLINKS)
    fd: int = _syscall(_SYS_OPENAT2, folder, os.fsencode("/".join(parts)) or b".", ctypes.addressof(how), ctypes.sizeof(how))
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return fd
