"""Where what exceeds the memory limit goes."""

from __future__ import annotations

import logging
import os
import tempfile

from zarrfs import own_files
from zarrfs.options.config import MountConfig

log = logging.getLogger(__name__)


def cache_directory(config: MountConfig) -> str | None:
    """Where what exceeds the memory limit goes: the configured folder, else the user's cache folder; None for the system's own."""
    if config.cache_dir is not None:
        own_files.make_folder(config.cache_dir)
        return config.cache_dir
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.path.join(home, "zarrfs")
    try:
        own_files.make_folder(folder, 0o700)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        log.info("%s cannot be used (%s): large files are staged in the system's temporary folder", folder, error)
        return None
