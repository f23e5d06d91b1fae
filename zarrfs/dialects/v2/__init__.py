"""Zarr v2."""

from zarrfs.dialects.v2.dialect import PLUGIN

__all__ = ["PLUGIN"]
