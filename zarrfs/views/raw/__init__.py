"""raw/: every store key as a file, byte for byte."""

from zarrfs.views.raw.view import PLUGIN

__all__ = ["PLUGIN"]
