"""A folder of files: each key is a path below it."""

from zarrfs.stores.folder.plugin import PLUGIN

__all__ = ["PLUGIN"]
