"""The number of descriptors that the daemon may have."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)

# That of the systemd unit. The hard limit may be a thousand million, and programs that close all descriptors then take minutes.
_MAX_OPEN = 65536


def raise_limit() -> None:
    """Raise the soft limit of open descriptors to the hard one, at most to 65,536.

    Folders of arrays in use are held open, one in eight of the limit (`zarrfs.stores.folder.anchors`). The usual soft limit of 1,024
    exists for programs that use select(2).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.debug("limit of descriptors stays %d: %s", soft, error)
