"""A FUSE mount of another user that claims that all in it, files, folders and links, belongs to root.

By the protocol of the kernel itself (<linux/fuse.h>, version 7.31): fusermount3 would need a changed /etc/fuse.conf.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_HEADER = struct.Struct("<IIQQ")
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def claiming_mount(mountpoint: Path, user: int, entries: Mapping[str, bytes | Path]) -> Iterator[None]:
    """Mount, as ``user`` with ``allow_other``, folders of root's with ``entries`` by path: files with a content, links to a target."""
    connection = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={connection},rootmode=40000,user_id={user},group_id={user},allow_other"
    server = threading.Thread(target=_Tree(entries).serve, args=(connection,), daemon=True)
    try:
        assert _libc.mount(b"claims", os.fsencode(mountpoint), b"fuse.claims", 0, options.encode()) == 0, ctypes.get_errno()
        server.start()
        yield
    finally:
        _libc.umount2(os.fsencode(mountpoint), _MNT_DETACH)
        if server.ident is not None:
            server.join(60)
        os.close(connection)


class _Tree:
    def __init__(self, entries: Mapping[str, bytes | Path]) -> None:
        self._entries = entries
        paths = {"", *entries, *(str(above) for path in entries for above in Path(path).parents if above.name)}
        # Their numbers, from 1, which is the root's.
        self._paths = sorted(paths)

    def serve(self, connection: int) -> None:
        while True:
            try:
                request = os.read(connection, 1 << 20)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                continue
            _, operation, unique, node = _HEADER.unpack_from(request)
            answer = self._answer(operation, node, request[40:])
            if answer is not None:
                code, content = (0, answer) if isinstance(answer, bytes) else (-answer, b"")
                os.write(connection, struct.pack("<IiQ", 16 + len(content), code, unique) + content)

    def _answer(self, operation: int, node: int, about: bytes) -> bytes | int | None:
        """Return the content of an answer, an errno, or None for no answer."""
        path = self._paths[node - 1] if node else ""
        entry = self._entries.get(path)
        match operation:
            case 26:  # INIT
                return struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, 0)
            case 1:  # LOOKUP
                found = os.path.join(path, os.fsdecode(about.rstrip(b"\0")))
                if found not in self._paths:
                    return errno.ENOENT
                number = self._paths.index(found) + 1
                return struct.pack("<QQQQII", number, 0, 0, 0, 0, 0) + self._attributes(number)
            case 3:  # GETATTR
                return struct.pack("<QII", 0, 0, 0) + self._attributes(node)
            case 5:  # READLINK
                return os.fsencode(str(entry))
            case 15 if isinstance(entry, bytes):  # READ
                _, offset, size = struct.unpack_from("<QQI", about)
                return entry[offset : offset + size]
            case 28:  # READDIR
                return b"" if struct.unpack_from("<QQ", about)[1] else self._listed(path)
            case 17:  # STATFS
                return bytes(80)
            case 2 | 42:  # FORGET, BATCH_FORGET
                return None
        return errno.ENOSYS

    def _listed(self, folder: str) -> bytes:
        inside = [each for each in self._paths if each and os.path.dirname(each) == folder]
        names = [(self._paths.index(each) + 1, os.fsencode(os.path.basename(each))) for each in inside]
        entries = (struct.pack("<QQII", number, 1, len(name), 0) + name for number, name in names)
        return b"".join(entry + bytes(-len(entry) % 8) for entry in entries)

    def _attributes(self, node: int) -> bytes:
        entry = self._entries.get(self._paths[node - 1])
        nbytes = len(entry) if isinstance(entry, bytes) else 0
        mode = stat.S_IFREG | 0o644 if isinstance(entry, bytes) else stat.S_IFDIR | 0o755 if entry is None else stat.S_IFLNK | 0o777
        return struct.pack("<6Q10I", node, nbytes, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
