"""Owner, mode and ACL of the files that a folder store writes.

A value is replaced by a new file, so owner, mode and ACL are chosen anew each time. The rules:

* Owner and group are those given to the store (`Owner`), else those the kernel gives to the process. Only root can change the owner.
* A new file gets the permission bits of the one it replaces, without set-user-ID, set-group-ID and sticky, which its owner did not set.
* No user gets more rights than before. A new group gives the group bits another meaning, and the former owner and members of the
  former group become others: bits that would grant more are cleared. The owner of the new file keeps the owner's bits.
* An ACL and a security label stay if the owner does. Without an ACL the group bits are no longer a mask: they become what every entry
  grants.
* A file that replaces another is private until it is complete, whatever umask and default ACL are.

Sources: acl(5); Linux ``fs/posix_acl.c`` (``posix_acl_create_masq``) and ``include/uapi/linux/posix_acl_xattr.h``.
"""

from __future__ import annotations

import errno
import operator
import os
import stat as st
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import reduce
from typing import NamedTuple

_ACCESS, _DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
_LABELS = ("security.selinux", "security.SMACK64")

_USER_OBJ, _USER, _GROUP_OBJ, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
_ACL_HEADER = struct.pack("<I", 2)
_ACL_ENTRY = struct.Struct("<HHI")
_NO_ID = 0xFFFFFFFF

_PRIVATE = 0o600
_FRESH = 0o1700
"""Mode of a folder between its creation and its change of owner.

No other folder has this mode: a folder that another program puts at the path before it is opened does not get the new owner."""


_OF_RIGHTS = ("st_dev", "st_ino", "st_ctime_ns", "st_mode", "st_uid", "st_gid")


class Owner(NamedTuple):
    """The owner of new files; None: the process's own user or group."""

    uid: int | None = None
    gid: int | None = None


class Entry(NamedTuple):
    """An entry of an ACL: its kind, its permission bits, and its user or group."""

    tag: int
    bits: int
    ident: int = _NO_ID


Acl = tuple[Entry, ...]


class Rights(NamedTuple):
    """The rights that a file grants: owner, group and mode in ``stat``; ``acl`` if it grants more than the mode; security labels."""

    stat: os.stat_result
    acl: Acl = ()
    labels: tuple[tuple[str, bytes], ...] = ()


def rights_of(folder: int, name: str) -> Rights | None:
    """Return the rights of the file ``name`` in ``folder`` (a descriptor), links not followed; None if absent."""
    try:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        stat = os.fstat(fd)
        # System calls on descriptors refuse one with O_PATH.
        path = f"/proc/self/fd/{fd}"
        try:
            names = os.listxattr(path)
        except OSError:
            return Rights(stat)
        acl = _parsed(_xattr(path, _ACCESS)) if _ACCESS in names else ()
        labels = tuple((label, _xattr(path, label)) for label in _LABELS if label in names)
        return Rights(stat, acl, labels)
    finally:
        os.close(fd)


def create(folder: int, name: str, *, private: bool) -> int:
    """Create a file for writing, and return its descriptor. ``private``: not accessible to other users until `complete`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, _PRIVATE if private else 0o666, dir_fd=folder)


def complete(fd: int, folder: int, name: str, owner: Owner | None, mode: int = 0o666) -> None:
    """Set owner, rights and a unique time of a new file about to become ``name`` in ``folder``, as far as permitted.

    The file is private if it has a given ``owner``, or replaces another. ``mode``: of a new one at most."""
    if owner is not None:
        _give(fd, owner)
    with suppress(OSError):
        # Read as late as this: if the target became private while the value was written, so does its replacement.
        old = rights_of(folder, name)
        if old is not None:
            _hand_down(fd, old)
        elif st.S_IMODE(os.fstat(fd).st_mode) == _PRIVATE:
            _widen(fd, folder, mode)
    with suppress(OSError):
        # The kernel's own times advance every few milliseconds and inode numbers are reused at once, so that two values of one size
        # could have the same generation.
        now = time.time_ns()
        os.utime(fd, ns=(now, now))


def are_new(found: os.stat_result | None, before: os.stat_result | None) -> bool:
    """Return True unless a file is the same as ``before``, and its rights are: none of them is changed without the ctime."""
    return found is not None and (before is None or any(getattr(found, name) != getattr(before, name) for name in _OF_RIGHTS))


class Model(NamedTuple):
    """The folder whose rights a new one gets (a descriptor): the one above its place, or the one that it replaces."""

    folder: int
    is_replaced: bool


def make_folder(folder: int, name: str, owner: Owner | None, model: Model | None = None) -> None:
    """Run mkdir(2) in ``folder``, with the owner of new files, and the rights of ``model`` if it is for another place.

    Raises `OSError`."""
    os.mkdir(name, 0o777 if owner is None else _FRESH, dir_fd=folder)
    if owner is None and (model is None or (not model.is_replaced and _passed_on(folder) == _passed_on(model.folder))):
        return
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if not _is_fresh(os.fstat(fd), owner) or os.listdir(fd):
            return
        if model is not None:
            with suppress(OSError):
                _prepare(fd, model)
        if owner is not None:
            _give(fd, owner)
        with suppress(OSError):
            if model is not None and model.is_replaced:
                _replace(fd, model.folder)
            else:
                above = folder if model is None else model.folder
                _widen(fd, above, 0o777 | os.fstat(above).st_mode & st.S_ISGID)
    finally:
        os.close(fd)


def _passed_on(folder: int) -> tuple[int, int, bytes]:
    """Return what a folder passes on to those created in it: its group, if it is set-group-ID, and its default ACL."""
    stat = os.fstat(folder)
    return stat.st_gid, stat.st_mode & st.S_ISGID, _xattr(f"/proc/self/fd/{folder}", _DEFAULT)


def _is_fresh(stat: os.stat_result, owner: Owner | None) -> bool:
    """Return False for a folder that another program may have put in the place of a new one."""
    user = os.geteuid()
    # Only root can change those of others. A new one may have another number: sshfs reports that of the user on the other machine.
    return (stat.st_uid == user or user != 0) and (owner is None or stat.st_mode & 0o1077 == _FRESH & 0o1077)


def _prepare(fd: int, model: Model) -> None:
    """Give a new folder the group and the default ACL of ``model``, and no ACL of the folder in which it was created."""
    there = os.fstat(model.folder)
    group = there.st_gid if model.is_replaced or there.st_mode & st.S_ISGID else os.getegid()
    if group != os.fstat(fd).st_gid:
        with suppress(OSError):
            os.fchown(fd, -1, group)
    default = _xattr(f"/proc/self/fd/{model.folder}", _DEFAULT)
    for name in (_ACCESS, _DEFAULT):
        if _has(fd, name) and not (default and name == _DEFAULT):
            os.removexattr(fd, name)
    if default:
        os.setxattr(fd, _DEFAULT, default)


def _replace(fd: int, old: int) -> None:
    """Give a new folder the rights of ``old``, another one, as a new file gets those of the one it replaces."""
    there, new = os.fstat(old), os.fstat(fd)
    mode, acl = narrowed(Rights(there, _parsed(_xattr(f"/proc/self/fd/{old}", _ACCESS))), new.st_uid, new.st_gid)
    special = there.st_mode & (0o3000 if there.st_gid == new.st_gid else 0o1000)
    _set_bits(fd, special, acl or _of_mode(mode))


def share(folder: int, name: str, owner: Owner | None = None) -> None:
    """Grant the rights to ``folder`` in the new folder ``name``, too, as far as its owner may: to those with write access to the one.

    A folder that is not empty, or of another owner than `make_folder` gives, is another one, put in its place by another program."""
    above = os.fstat(folder)
    owners = {os.geteuid(), None if owner is None else owner.uid}
    with suppress(OSError):
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            stat = os.fstat(fd)
            if (stat.st_uid not in owners and os.geteuid() == 0) or os.listdir(fd):
                return
            if stat.st_gid != above.st_gid:
                # Not permitted where the user has the rights of another group, or of all.
                with suppress(OSError):
                    os.fchown(fd, -1, above.st_gid)
                stat = os.fstat(fd)
            old = Rights(above, _parsed(_xattr(f"/proc/self/fd/{folder}", _ACCESS)))
            _set_bits(fd, stat.st_mode & 0o7000 | above.st_mode & 0o3000, shared(old, stat.st_uid, stat.st_gid))
        finally:
            os.close(fd)


def close(folder: int, name: str, on_the_way: Iterable[int]) -> None:
    """Close a new folder of this process to those who may not enter, or write to, all of the others (descriptors). Raises `OSError`."""
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        stat, closed = os.fstat(fd), 0
        for each in on_the_way:
            there, acl = os.fstat(each), _parsed(_xattr(f"/proc/self/fd/{each}", _ACCESS))
            bits = [entry.bits for entry in acl or _of_mode(there.st_mode) if entry.tag != _USER_OBJ]
            everybody = reduce(operator.and_, bits)
            group = there.st_mode >> 3 & 7 if there.st_gid == stat.st_gid and not acl else everybody
            for bit, what in ((1, 0o7), (2, 0o2)):
                closed |= (0 if everybody & bit else what) | (0 if group & bit else what << 3)
        if closed & 0o055 and _has(fd, _ACCESS):
            # Whom it names is not known of the others.
            os.removexattr(fd, _ACCESS)
            closed |= 0o077
        if closed:
            os.fchmod(fd, stat.st_mode & 0o7777 & ~closed)
    finally:
        os.close(fd)


def shared(old: Rights, uid: int, gid: int) -> Acl:
    """Return the ACL with which a folder of ``uid`` and ``gid`` grants what ``old`` does, and its owner everything.

    A user may get less, where a group has fewer rights than all others, or two entries; none gets more."""
    acl = old.acl or _of_mode(old.stat.st_mode)
    mask = next((entry.bits for entry in acl if entry.tag == _MASK), 7)
    users = {entry.ident: entry.bits & mask for entry in acl if entry.tag == _USER}
    groups = {entry.ident: entry.bits & mask for entry in acl if entry.tag == _GROUP}
    (user,) = (entry.bits for entry in acl if entry.tag == _USER_OBJ)
    (group,) = (entry.bits & mask for entry in acl if entry.tag == _GROUP_OBJ)
    (other,) = (entry.bits for entry in acl if entry.tag == _OTHER)
    if old.stat.st_uid not in (uid, 0):
        users[old.stat.st_uid] = user
    users.pop(uid, None)
    if old.stat.st_gid != gid:
        groups[old.stat.st_gid] = group
        group = groups.pop(gid, reduce(operator.and_, groups.values(), other))
    if {group, *groups.values()} == {other}:
        groups.clear()
        users = {ident: bits for ident, bits in users.items() if bits != other}
    if not users and not groups:
        return _of_mode(0o700 | group << 3 | other)
    return (
        Entry(_USER_OBJ, 7),
        *(Entry(_USER, bits, ident) for ident, bits in sorted(users.items())),
        Entry(_GROUP_OBJ, group),
        *(Entry(_GROUP, bits, ident) for ident, bits in sorted(groups.items())),
        Entry(_MASK, reduce(operator.or_, (group, *users.values(), *groups.values()))),
        Entry(_OTHER, other),
    )


def _set_bits(fd: int, special: int, acl: Acl) -> None:
    """Give a folder this ACL, and these of set-user-ID, set-group-ID and sticky. Without ACLs nobody but its owner gets more."""
    bits = {entry.tag: entry.bits for entry in acl if entry.tag not in (_USER, _GROUP)}
    if len(acl) > len(bits) or _MASK in bits:
        try:
            os.setxattr(fd, _ACCESS, _formatted(acl))
        except OSError:
            everybody = reduce(operator.and_, (entry.bits for entry in acl))
            bits = {_USER_OBJ: 7, _GROUP_OBJ: everybody, _OTHER: everybody}
    elif _has(fd, _ACCESS):
        os.removexattr(fd, _ACCESS)
    os.fchmod(fd, special | bits[_USER_OBJ] << 6 | bits.get(_MASK, bits[_GROUP_OBJ]) << 3 | bits[_OTHER])


def narrowed(old: Rights, uid: int, gid: int) -> tuple[int, Acl]:
    """Return the permission bits and ACL of a file of ``uid`` and ``gid`` that replaces one with the rights ``old``.

    An empty ACL means none; the bits are then those of a file without it."""
    stat = old.stat
    same_owner, same_group = stat.st_uid == uid, stat.st_gid == gid
    acl = old.acl or _of_mode(stat.st_mode)
    mask = next((entry.bits for entry in acl if entry.tag == _MASK), 7)
    (user,) = (entry.bits for entry in acl if entry.tag == _USER_OBJ)
    (group,) = (entry.bits & mask for entry in acl if entry.tag == _GROUP_OBJ)
    (other,) = (entry.bits for entry in acl if entry.tag == _OTHER)
    everybody = 7 if same_owner else user
    named = 7
    for entry in acl:
        if entry.tag in (_USER, _GROUP):
            everybody &= entry.bits & mask
        if entry.tag == _GROUP:
            named &= entry.bits & mask
    # Members of another group were others before; members of the old group now are.
    new_group, new_other = (group, other) if same_group else (group & other, group & other)
    mode = user << 6 | (new_group & everybody) << 3 | new_other & everybody
    if not old.acl or not same_owner:
        return mode, ()
    if same_group:
        return mode, old.acl
    bits = {_GROUP_OBJ: new_group & named, _OTHER: new_other}
    return mode, tuple(entry._replace(bits=bits.get(entry.tag, entry.bits)) for entry in old.acl)


def _hand_down(fd: int, old: Rights) -> None:
    new = os.fstat(fd)
    mode, acl = narrowed(old, new.st_uid, new.st_gid)
    if new.st_uid == old.stat.st_uid:
        for label, value in old.labels:
            with suppress(OSError):
                os.setxattr(fd, label, value)
    if acl:
        try:
            os.setxattr(fd, _ACCESS, _formatted(acl))
            return
        except OSError:
            pass
    # With an ACL from the folder the group bits would be a mask for other users.
    if _has(fd, _ACCESS):
        os.removexattr(fd, _ACCESS)
    if st.S_IMODE(new.st_mode) != mode:
        os.fchmod(fd, mode)


def _has(fd: int, name: str) -> bool:
    try:
        return name in os.listxattr(fd)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
            return False
        raise


def _give(fd: int, owner: Owner) -> None:
    stat = os.fstat(fd)
    for uid, gid in ((-1, owner.gid), (owner.uid, -1)):
        if uid is not None and gid is not None and (uid, gid) not in ((-1, stat.st_gid), (stat.st_uid, -1)):
            with suppress(OSError):
                os.fchown(fd, uid, gid)


def _widen(fd: int, folder: int, mode: int) -> None:
    """Give a file created private in ``folder`` the rights that creation with ``mode`` would have given it."""
    acl = _parsed(_xattr(f"/proc/self/fd/{folder}", _DEFAULT))
    if not acl:
        os.fchmod(fd, mode & ~_umask())
        return
    group = _MASK if any(entry.tag == _MASK for entry in acl) else _GROUP_OBJ
    most = {_USER_OBJ: mode >> 6 & 7, group: mode >> 3 & 7, _OTHER: mode & 7}
    acl = tuple(entry._replace(bits=entry.bits & most.get(entry.tag, 7)) for entry in acl)
    bits = {entry.tag: entry.bits for entry in acl}
    if len(acl) > 3:
        os.setxattr(fd, _ACCESS, _formatted(acl))
    os.fchmod(fd, mode & st.S_ISGID | bits[_USER_OBJ] << 6 | bits[group] << 3 | bits[_OTHER])


def _umask() -> int:
    # umask(2) returns the mask only by setting it, for all threads.
    with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
        return next((int(line.split()[1], 8) for line in lines if line.startswith("Umask:")), 0o077)


def _xattr(key: str, name: str) -> bytes:
    try:
        return os.getxattr(key, name)
    except OSError:
        return b""


def _of_mode(mode: int) -> Acl:
    return (Entry(_USER_OBJ, mode >> 6 & 7), Entry(_GROUP_OBJ, mode >> 3 & 7), Entry(_OTHER, mode & 7))


def _parsed(value: bytes) -> Acl:
    """Return the entries of an ACL's extended attribute; none if it is equivalent to a mode, or of an unknown form."""
    if not value.startswith(_ACL_HEADER) or (len(value) - len(_ACL_HEADER)) % _ACL_ENTRY.size:
        return ()
    acl = tuple(Entry(*entry) for entry in _ACL_ENTRY.iter_unpack(value[len(_ACL_HEADER) :]))
    tags = [entry.tag for entry in acl]
    return acl if all(tags.count(tag) == 1 for tag in (_USER_OBJ, _GROUP_OBJ, _OTHER)) else ()


def _formatted(acl: Acl) -> bytes:
    return _ACL_HEADER + b"".join(_ACL_ENTRY.pack(*entry) for entry in acl)
