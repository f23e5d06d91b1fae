"""A zip file, read-only."""

from zarrfs.stores.zip.archive import PLUGIN

__all__ = ["PLUGIN"]
