"""The member ``shuffle`` of Blosc as text, in documents that should have a number.

Source: numcodecs ``blosc`` (0 none, 1 bytes, 2 bits); GDAL's creation option ``BLOSC_SHUFFLE``, which its Zarr driver stores as given:

    {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": "BIT", "blocksize": 0}
"""

from __future__ import annotations

from typing import Any

from zarrfs.dialects.documents import shortened
from zarrfs.dialects.quirks import Quirks

_NUMBERS = {
    "none": 0,
    "noshuffle": 0,
    "0": 0,
    "byte": 1,
    "shuffle": 1,
    "1": 1,
    "bit": 2,
    "bitshuffle": 2,
    "2": 2,
}


def with_shuffle(config: Any, quirks: Quirks) -> Any:
    """Return the numcodecs configuration ``config`` with ``shuffle`` as a number, if it is text."""
    shuffle = config.get("shuffle") if isinstance(config, dict) and config.get("id") == "blosc" else None
    if not isinstance(shuffle, str) or shuffle.lower() not in _NUMBERS:
        return config
    number = _NUMBERS[shuffle.lower()]
    quirks.accept("shuffle", f"shuffle of blosc is {shortened(shuffle)} instead of {number}")
    return {**config, "shuffle": number}
