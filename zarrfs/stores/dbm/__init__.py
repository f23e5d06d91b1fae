"""A DBM, read-only."""

from zarrfs.stores.dbm.archive import PLUGIN

__all__ = ["PLUGIN"]
