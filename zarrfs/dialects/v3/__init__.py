"""The final Zarr v3."""

from zarrfs.dialects.v3.dialect import PLUGIN

__all__ = ["PLUGIN"]
