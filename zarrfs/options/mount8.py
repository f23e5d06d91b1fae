"""Options of mount(8) that say nothing to zarrfs: they stand in ``-o`` and in fstab beside ours.

The lists are mount(8)'s ("FILESYSTEM-INDEPENDENT MOUNT OPTIONS", util-linux 2.41), with what fstab(5) and systemd.mount(5) add. The
helper of a type gets nearly all of them, and is expected to know which are not its own. Ours may not be mistyped for all that, so
nothing is passed over by its looks but ``x-...`` and ``X-...``, which are kept free for others.
"""

from __future__ import annotations

# nosuid, nodev and default_permissions always, access times never: how zarrfs mounts whatever is asked.
_ALREADY_SO = {"default_permissions", "noatime", "nosuid", "nodev"}

# What decides whether, when and by whom something is mounted. mount(8) and systemd have acted on these.
_WHEN_AND_BY_WHOM = {
    *("defaults", "auto", "noauto", "nofail", "_netdev", "comment"),
    *("user", "nouser", "users", "nousers", "owner", "noowner", "group", "nogroup", "helper", "uhelper"),
}
# mount(8) sees to these itself, after the helper.
_PROPAGATION = {f"{r}{how}" for r in ("", "r") for how in ("private", "shared", "slave", "unbindable")}
# What has no meaning here: no access times are kept; there are no devices, links, or locks that could be mandatory; folders are as
# durable as what is in them.
_WITHOUT_EFFECT = {
    *("atime", "diratime", "nodiratime", "relatime", "norelatime", "strictatime", "nostrictatime", "lazytime", "nolazytime"),
    *("dev", "suid", "async", "dirsync", "symfollow", "nosymfollow"),
    *("iversion", "noiversion", "mand", "nomand", "silent", "loud"),
}
_WITH_VALUE = {"comment", "user", "helper", "uhelper"}

STANDARD = frozenset(_ALREADY_SO | _WHEN_AND_BY_WHOM | _PROPAGATION | _WITHOUT_EFFECT)
"""All that are passed over, with underscores, without those that begin with ``x-`` or ``X-``."""

_OTHER_TREE = "that is for folders which are in the file tree already: leave out the type"
_DEVICE = "a store is no block device: leave it out"
_LABEL = "SELinux labels cannot be chosen for a zarrfs mount: leave it out"
_REFUSED = {
    "remount": "a zarrfs mount cannot be changed while it is mounted: unmount it, then mount it with the new options",
    **dict.fromkeys(("bind", "rbind", "move"), _OTHER_TREE),
    **dict.fromkeys(("loop", "offset", "sizelimit"), _DEVICE),
    **dict.fromkeys(("context", "fscontext", "defcontext", "rootcontext"), _LABEL),
}


def is_standard(option: str) -> bool:
    """Whether ``option`` (as it was written, with its value) is somebody else's."""
    if option.startswith(("x-", "X-")):
        return True
    name, equals, _ = option.partition("=")
    name = name.replace("-", "_")
    return name in (_WITH_VALUE if equals else STANDARD)


def refusal(option: str) -> str | None:
    """Why what ``option`` asks for cannot be had, and what to do; None where there is no such reason."""
    return _REFUSED.get(option.partition("=")[0])
