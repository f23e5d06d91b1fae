"""A FUSE mount of another user that claims that its one entry, a link, belongs to root.

By the protocol of the kernel itself (<linux/fuse.h>, version 7.31): fusermount3 would need a changed /etc/fuse.conf.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LINK = 2
_HEADER = struct.Struct("<IIQQ")
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def claiming_mount(mountpoint: Path, user: int, target: Path) -> Iterator[Path]:
    """Mount, as ``user`` with ``allow_other``, a folder of root's with a link of root's to ``target``; yield the link."""
    connection = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={connection},rootmode=40000,user_id={user},group_id={user},allow_other"
    server = threading.Thread(target=_serve, args=(connection, os.fsencode(target)), daemon=True)
    try:
        assert _libc.mount(b"claims", os.fsencode(mountpoint), b"fuse.claims", 0, options.encode()) == 0, ctypes.get_errno()
        server.start()
        yield mountpoint / "link"
    finally:
        _libc.umount2(os.fsencode(mountpoint), _MNT_DETACH)
        if server.ident is not None:
            server.join(60)
        os.close(connection)


def _serve(connection: int, target: bytes) -> None:
    while True:
        try:
            request = os.read(connection, 1 << 20)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            continue
        _, operation, unique, node = _HEADER.unpack_from(request)
        answer = _answer(operation, node, request[40:], target)
        if answer is not None:
            code, content = (0, answer) if isinstance(answer, bytes) else (-answer, b"")
            os.write(connection, struct.pack("<IiQ", 16 + len(content), code, unique) + content)


def _answer(operation: int, node: int, about: bytes, target: bytes) -> bytes | int | None:
    """Return the content of an answer, an errno, or None for no answer."""
    match operation:
        case 26:  # INIT
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, 0)
        case 1 if about == b"link\0":  # LOOKUP
            return struct.pack("<QQQQII", _LINK, 0, 0, 0, 0, 0) + _attributes(_LINK)
        case 1:
            return errno.ENOENT
        case 3:  # GETATTR
            return struct.pack("<QII", 0, 0, 0) + _attributes(node)
        case 5:  # READLINK
            return target
        case 17:  # STATFS
            return bytes(80)
        case 2 | 42:  # FORGET, BATCH_FORGET
            return None
    return errno.ENOSYS


def _attributes(node: int) -> bytes:
    mode = stat.S_IFLNK | 0o777 if node == _LINK else stat.S_IFDIR | 0o755
    return struct.pack("<6Q10I", node, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
