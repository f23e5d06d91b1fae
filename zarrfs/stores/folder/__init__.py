"""A folder of files: each key is a path below it."""

from zarrfs.stores.folder.store import PLUGIN

__all__ = ["PLUGIN"]
