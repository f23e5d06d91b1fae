"""Zarr v1."""

from zarrfs.dialects.v1.dialect import PLUGIN

__all__ = ["PLUGIN"]
