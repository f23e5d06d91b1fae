"""Folder for data above the memory limit."""

from __future__ import annotations

import logging
import os
import tempfile

from zarrfs.errors import UsageError
from zarrfs.options import user_folders
from zarrfs.options.config import MountConfig
from zarrfs.stores import own_files

log = logging.getLogger(__name__)


def cache_directory(config: MountConfig) -> str | None:
    """Return the configured folder, else the user's cache folder; None for the system's temporary folder.

    Raises `UsageError` if no file can be created in the configured folder.
    """
    if config.cache_dir is not None:
        try:
            return _usable(config.cache_dir)
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(f"cache folder {config.cache_dir}: {reason}: choose another with --cache-dir") from error
    folder = os.path.join(user_folders.cache(), "zarrfs")
    try:
        return _usable(folder)
    except OSError as error:
        log.info("%s: unusable (%s), staging large files in the system's temporary folder", folder, error)
        return None


def _usable(folder: str) -> str:
    """Return ``folder``, created if missing. Raises `OSError` if no file can be created in it."""
    own_files.make_folder(folder)
    with tempfile.TemporaryFile(dir=folder):
        return folder
