"""Members of codecs in the form of netCDF-C, which differs from that of numcodecs.

Source: netCDF-C ``libnczarr/zfilter.c`` and ``plugins/NCZhdf5filters.c`` (4.9 to 4.10); numcodecs ``shuffle``.

    {"id": "zlib", "level": "1"}             4.9 writes numbers as text
    {"id": "shuffle", "elementsize": 0}      4.10; 4.9 writes "0"

netCDF-C shuffles the bytes of elements of the variable's type, whatever ``elementsize`` is, and writes 0. For numcodecs, 0 means no
shuffling, but it writes the size that a program gave, which is never 0 in practice. We read what netCDF-C wrote; the choice
``elementsize=none`` reads what numcodecs does. zarr-python follows numcodecs, and returns shuffled bytes for arrays of netCDF-C.
"""

from __future__ import annotations

import re
from typing import Any

from zarrfs.dialects.documents import shortened
from zarrfs.dialects.quirks import Quirks

# Values of the choice `elementsize`; the first one is the default.
ELEMENTSIZE = ("type", "none")

_NUMBERS = ("level", "elementsize")
_NUMBER = re.compile("-?[0-9]{1,9}")


def from_netcdf(config: Any, itemsize: int, quirks: Quirks) -> Any:
    """Return the numcodecs configuration ``config`` without members in netCDF-C's own form. ``itemsize``: bytes of an element."""
    if not isinstance(config, dict):
        return config
    for name in _NUMBERS:
        value = config.get(name)
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            quirks.accept("level", f"{name} of {shortened(config.get('id'))} is the string {shortened(value)}")
            config = {**config, name: int(value)}
    if config.get("id") != "shuffle" or type(config.get("elementsize")) is not int or config["elementsize"] != 0 or itemsize == 1:
        return config
    if quirks.chosen("elementsize") == "none":
        quirks.append("elementsize of shuffle is 0, read as no shuffling, as chosen by v2.elementsize=none")
        return config
    quirks.append(
        f"elementsize of shuffle is 0, read as {itemsize}: netCDF-C; --dialect-choices v2.elementsize=none for no shuffling"
    )
    return {**config, "elementsize": itemsize}
