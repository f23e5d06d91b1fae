"""Folder for data above the memory limit."""

from __future__ import annotations

import logging
import os
import tempfile

from zarrfs.options import user_folders
from zarrfs.options.config import MountConfig
from zarrfs.stores import own_files

log = logging.getLogger(__name__)


def cache_directory(config: MountConfig) -> str | None:
    """Return the configured folder, else the user's cache folder; None for the system's temporary folder."""
    if config.cache_dir is not None:
        own_files.make_folder(config.cache_dir)
        return config.cache_dir
    folder = os.path.join(user_folders.cache(), "zarrfs")
    try:
        own_files.make_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        log.info("%s: unusable (%s), staging large files in the system's temporary folder", folder, error)
        return None
