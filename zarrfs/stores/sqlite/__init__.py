"""An SQLite database with a table of keys and values, read-only."""

from zarrfs.stores.sqlite.quiet import PLUGIN

__all__ = ["PLUGIN"]
