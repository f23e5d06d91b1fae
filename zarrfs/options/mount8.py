"""Options of mount(8) without a meaning for zarrfs, which appear in ``-o`` and in fstab beside its own.

The lists are those of mount(8) ("FILESYSTEM-INDEPENDENT MOUNT OPTIONS", util-linux 2.41), fstab(5) and systemd.mount(5). A helper of
mount(8) gets nearly all of them and must recognize foreign ones. Typing errors in options of zarrfs must still be errors, so only
``x-...`` and ``X-...``, which are reserved for others, are ignored by their form.
"""

from __future__ import annotations

# Always in effect for zarrfs mounts: nosuid, nodev, default_permissions, and no access times.
_ALREADY_SO = {"default_permissions", "noatime", "nosuid", "nodev"}

# Whether, when and by whom a file system is mounted. mount(8) and systemd have already applied these.
_WHEN_AND_BY_WHOM = {
    *("defaults", "auto", "noauto", "nofail", "_netdev", "comment"),
    *("user", "nouser", "users", "nousers", "owner", "noowner", "group", "nogroup", "helper", "uhelper"),
}
# Applied by mount(8) itself after the helper.
_PROPAGATION = {f"{r}{how}" for r in ("", "r") for how in ("private", "shared", "slave", "unbindable")}
# Without effect here: there are no access times, devices, symbolic links or mandatory locks, and folders are as durable as their
# content.
_WITHOUT_EFFECT = {
    *("atime", "diratime", "nodiratime", "relatime", "norelatime", "strictatime", "nostrictatime", "lazytime", "nolazytime"),
    *("dev", "suid", "async", "dirsync", "symfollow", "nosymfollow"),
    *("iversion", "noiversion", "mand", "nomand", "silent", "loud"),
}
_WITH_VALUE = {"comment", "user", "helper", "uhelper"}

STANDARD = frozenset(_ALREADY_SO | _WHEN_AND_BY_WHOM | _PROPAGATION | _WITHOUT_EFFECT)
"""All ignored options, with underscores, except those that begin with ``x-`` or ``X-``."""

_OTHER_TREE = "applies to folders of the file tree only: leave out the type"
_DEVICE = "a store is not a block device: leave it out"
_LABEL = "SELinux labels are not supported by zarrfs mounts: leave it out"
_REFUSED = {
    "remount": "not supported by zarrfs mounts: unmount it, then mount it with the new options",
    **dict.fromkeys(("bind", "rbind", "move"), _OTHER_TREE),
    **dict.fromkeys(("loop", "offset", "sizelimit"), _DEVICE),
    **dict.fromkeys(("context", "fscontext", "defcontext", "rootcontext"), _LABEL),
}


def is_standard(option: str) -> bool:
    """Return True if ``option`` (as written, with its value) is ignored as an option of mount(8) or another program."""
    if option.startswith(("x-", "X-")):
        return True
    name, equals, _ = option.partition("=")
    name = name.replace("-", "_")
    return name in (_WITH_VALUE if equals else STANDARD)


def refusal(option: str) -> str | None:
    """Return the reason why ``option`` is unsupported, with advice; None if it is not refused."""
    return _REFUSED.get(option.partition("=")[0])
