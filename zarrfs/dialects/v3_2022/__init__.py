"""The Zarr v3 core draft of 2022."""

from zarrfs.dialects.v3_2022.dialect import PLUGIN

__all__ = ["PLUGIN"]
