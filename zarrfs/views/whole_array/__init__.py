"""npy/ and other whole-array views: each array as one file."""

from zarrfs.views.whole_array.view import PLUGIN

__all__ = ["PLUGIN"]
