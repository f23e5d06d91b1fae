"""Files in folders that may belong to other users: logs, folders that zarrfs creates, mountpoints and stores.

A path is walked name by name, each relative to the descriptor of the previous folder. A symbolic link is followed only if it, and its
folder, belong to this process's user or to root: in a folder of another user a link can be created, or exchanged, at any time, and a
write through it changes a file of the victim. For the same reason a file in such a folder, or in one that others may write to, must be
a regular file of this user, without a second name.

A store may be another user's. Root opens it through links of that user, but not through links to something of anyone else, to which the
mount would give them access. Nor through their links to ``/proc/PID/root`` and similar: in a mount namespace of their own, users put
mounts of anyone's folders into their own ones (``unshare --user --mount``).
"""

from __future__ import annotations

import errno
import os
import stat as st
from collections import deque

from zarrfs.errors import UsageError
from zarrfs.stores.owners import UNKNOWN, is_ours, is_ours_alone, owner_of

_MAX_LINKS = 40
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def absolute(path: str) -> str:
    """Return ``path`` made absolute, without ``.`` and ``..``; the links on it are kept.

    Raises `UsageError` where ``..`` follows a symbolic link that leads elsewhere: for the kernel, and thus for every other program,
    ``link/../x`` is beside the target of the link, and beside the link itself may be another store. It is not chosen here either: root
    is not led by links of other users.
    """
    at = "/" if path.startswith("/") or ".." not in path else os.getcwd()
    for part in path.split("/"):
        if part == "..":
            above = os.path.dirname(at)
            if os.path.islink(at) and os.path.realpath(f"{at}/..") != os.path.realpath(above):
                raise UsageError(f"{path}: `..` after the symbolic link {at}: give the path without it", key=path)
            at = above
        elif part not in ("", "."):
            at = os.path.join(at, part)
    return os.path.abspath(path)


def open_file(path: str, flags: int, mode: int = 0o666) -> int:
    """Return a descriptor from open(2) of ``path``. O_CREAT creates a missing file.

    Raises `OSError`: EPERM for a link or a file placed by another user.
    """
    with _Walk(path, make=False) as walk:
        return walk.open_last(flags, mode)


def make_folder(path: str) -> None:
    """Create ``path`` and the folders on the way, if missing, for this user only. Raises `OSError` as `open_file` does."""
    os.close(enter_folder(path))


def enter_folder(path: str) -> int:
    """Return an O_PATH descriptor of the folder that `make_folder` creates or finds. Raises `OSError` as `open_file` does."""
    with _Walk(path, make=True) as walk:
        walk.enter_last()
        return walk.taken()


def open_folder(path: str) -> int:
    """Return an O_PATH descriptor of the folder ``path``. Raises `OSError` as `open_file` does; ELOOP if the last name is a link."""
    if os.path.islink(path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    with _Walk(path, make=False) as walk:
        walk.enter_last()
        return walk.taken()


def open_store(path: str, flags: int) -> int:
    """Return a descriptor from open(2) of an existing file or folder, the store ``path``.

    Raises `OSError`: for root, EPERM if links of other users lead to something that is not theirs.
    """
    if os.geteuid() != 0:
        return os.open(path, flags | os.O_CLOEXEC)
    with _Walk(path, make=False, of_store=True) as walk:
        return walk.open_store(flags | os.O_CLOEXEC)


def open_store_file(path: str, flags: int) -> int:
    """Return a descriptor from open(2) of the file ``path`` of a store, whose name follows from that of the store.

    Raises `OSError` as `open_store`, and for other users than root if the last name is a link of other users to something not theirs: who
    names the store does not choose it.
    """
    if os.geteuid() == 0:
        return open_store(path, flags)
    folder, name = os.path.split(os.path.abspath(path))
    with _Walk(os.path.join(os.path.realpath(folder), name), make=False, of_store=True) as walk:
        return walk.open_store(flags | os.O_CLOEXEC)


def place_of(path: str) -> tuple[str, set[int]]:
    """Return where ``path`` leads, without symbolic links, and the users, other than root and this one, whose links led there.

    Sends no request to what may be mounted there. Raises `OSError`: EPERM for links of other users that lead through a process.
    """
    with _Walk(path, make=False, of_store=True) as walk:
        return walk.place()


def is_private(folder: int) -> bool:
    """Return True if ``folder``, a descriptor, is this user's, and no other may write to it. Raises `OSError`."""
    return is_ours_alone(folder) and owner_of(folder) == os.geteuid()


def sync_names(folder: str) -> None:
    """Sync the names in ``folder``, unless this user may not read it, or the file system has no such operation. Raises `OSError`."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(fd)


class _Walk:
    """A walk along a path: ``_at``, a descriptor of the folder reached, and the names that are left.

    ``of_store``: links of other users are followed, and these users are in ``_leading``."""

    def __init__(self, path: str, *, make: bool, of_store: bool = False) -> None:
        self._path = path
        self._make = make
        self._of_store = of_store
        self._leading: set[int] = set()
        self._names = deque(name for name in os.path.abspath(path).split("/") if name)
        self._links = 0
        self._proc = os.stat("/proc").st_dev
        self._at = os.open("/", _FOLDER)

    def __enter__(self) -> _Walk:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._at)

    def open_last(self, flags: int, mode: int) -> int:
        """Open the file at the end of the path."""
        while True:
            if not self._names:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self._path)
            name = self._names.popleft()
            if self._names:
                self._enter(name)
                continue
            try:
                found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._at)
            except FileNotFoundError:
                if not flags & os.O_CREAT:
                    raise
                try:
                    return os.open(name, flags | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=self._at)
                except FileExistsError:
                    self._names.append(name)
                    continue
            try:
                if flags & os.O_EXCL:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self._path)
                if st.S_ISLNK(os.fstat(found).st_mode):
                    if self._follow(name, found):
                        # A descriptor of a process, or similar: the text of the link is not a path.
                        return os.open(name, flags & ~os.O_CREAT | os.O_CLOEXEC, dir_fd=self._at)
                    continue
                self._require_ours(found)
                # The very file that was checked.
                return os.open(f"/proc/self/fd/{found}", flags & ~os.O_CREAT | os.O_CLOEXEC)
            finally:
                os.close(found)

    def open_store(self, flags: int) -> int:
        """Open the file or folder at the end of the path."""
        while self._names:
            name = self._names.popleft()
            if self._names:
                self._enter(name)
                continue
            found = _found(name, self._at)
            try:
                if not st.S_ISLNK(os.fstat(found).st_mode):
                    return self._opened_store(found, flags)
                if self._follow(name, found):
                    # What a descriptor of a process, or similar, refers to.
                    link, found = found, os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=self._at)
                    os.close(link)
                    return self._opened_store(found, flags)
            finally:
                os.close(found)
        return self._opened_store(self._at, flags)

    def _opened_store(self, found: int, flags: int) -> int:
        if self._leading - {owner_of(found)}:
            raise PermissionError(
                errno.EPERM,
                "a link on the path belongs to another user than its target: use the target's path",
                self._path,
            )
        return os.open(f"/proc/self/fd/{found}", flags)

    def place(self) -> tuple[str, set[int]]:
        """Return the path reached, and the users whose links led there."""
        name = ""
        while self._names:
            name = self._names.popleft()
            if self._names:
                self._enter(name)
                continue
            found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._at)
            try:
                # Not its status, which may be a request.
                os.readlink("", dir_fd=found)
            except OSError:
                break
            else:
                self._follow(name, found)
                name = ""
            finally:
                os.close(found)
        return os.path.join(os.readlink(f"/proc/self/fd/{self._at}"), name).rstrip("/") or "/", self._leading

    def enter_last(self) -> None:
        """Enter the folder at the end of the path."""
        while self._names:
            name = self._names.popleft()
            self._enter(name)

    def taken(self) -> int:
        """Return a descriptor of the folder that was reached; the caller closes it."""
        return os.dup(self._at)

    def _enter(self, name: str) -> None:
        """Enter the folder ``name``, or begin to follow a link of that name."""
        while True:
            try:
                found = _found(name, self._at)
                break
            except FileNotFoundError:
                if not self._make:
                    raise
                try:
                    os.mkdir(name, 0o700, dir_fd=self._at)
                except FileExistsError:
                    continue
        try:
            kind = os.fstat(found).st_mode
            if st.S_ISLNK(kind):
                if self._follow(name, found):
                    self._go(os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._at))
            elif st.S_ISDIR(kind):
                self._go(os.dup(found))
            else:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self._path)
        finally:
            os.close(found)

    def _follow(self, name: str, link: int) -> bool:
        """Prepend the names of a link's target to those that are left. Returns True if the kernel must follow it instead."""
        self._links += 1
        if self._links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self._path)
        others = {owner_of(self._at), owner_of(link)} - {0, os.geteuid()}
        if self._of_store and UNKNOWN not in others:
            self._leading |= others
        elif others:
            raise PermissionError(errno.EPERM, f"symbolic link {name!r} on the path belongs to another user", self._path)
        if os.fstat(self._at).st_dev == self._proc:
            # The owner of a process may hide behind root: prctl(2), PR_SET_DUMPABLE.
            if self._leading:
                raise PermissionError(errno.EPERM, "another user's link on the path leads through a process", self._path)
            return True
        target = os.readlink("", dir_fd=link)
        if target.startswith("/"):
            self._go(os.open("/", _FOLDER))
        self._names.extendleft(part for part in reversed(target.split("/")) if part)
        return False

    def _require_ours(self, file: int) -> None:
        """Raise `PermissionError` unless the file is trusted: any file is, in a folder that only this user can write to."""
        if is_ours_alone(self._at):
            return
        found = os.fstat(file)
        if not st.S_ISREG(found.st_mode) or not is_ours(file) or found.st_nlink != 1:
            raise PermissionError(errno.EPERM, "not a regular file of this user, in a folder that others may write to", self._path)

    def _go(self, folder: int) -> None:
        os.close(self._at)
        self._at = folder


def _found(name: str, folder: int) -> int:
    """Return an O_PATH descriptor of ``name``, links not followed."""
    try:
        # O_DIRECTORY makes an automounter mount.
        return os.open(name, _FOLDER, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
