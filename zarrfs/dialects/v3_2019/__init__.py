"""The protocol draft of 2019."""

from zarrfs.dialects.v3_2019.dialect import PLUGIN

__all__ = ["PLUGIN"]
