"""Requests in progress in readable form: the handler's name, and the path of its object."""

from __future__ import annotations

from collections.abc import Iterator

from zarrfs.fuse.session import Session

_BY_HANDLE = ("read", "write", "flush", "fsync", "release")
_BY_DIRECTORY_HANDLE = ("readdir", "releasedir", "fsyncdir")


def under_way(session: Session) -> Iterator[tuple[float, str]]:
    """Yield the age in seconds and the description of each request, the oldest first."""
    for age, (name, *arguments) in session.requests:
        yield age, f"{name} {_path(session, str(name), arguments)!r}"


def _path(session: Session, name: str, arguments: list[object]) -> str:
    number = arguments[0] if arguments else None
    if not isinstance(number, int):
        return ""
    if name in _BY_HANDLE or name in _BY_DIRECTORY_HANDLE:
        return session.path_of_handle(number, directory=name in _BY_DIRECTORY_HANDLE)
    path = session.path_of_inode(number)
    entry = arguments[1] if len(arguments) > 1 else None
    # The entry in that folder, as of lookup and create.
    return "/".join(part for part in (path, entry.decode(errors="backslashreplace")) if part) if isinstance(entry, bytes) else path
