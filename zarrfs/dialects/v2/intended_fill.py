"""Fill values whose JSON type does not match the data type of the array.

"0"   of a number (bioformats2raw)      the number
0     of |S and <U (zarr-python)        its digits: zarr-python 2 reads the text "0"
"""

from __future__ import annotations

import json
import re
from base64 import standard_b64encode
from typing import Any

from zarrfs.dialects.documents import shortened
from zarrfs.dialects.quirks import Quirks
from zarrfs.dialects.v2.types import Stored

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,19})")


def intended_fill(stored: Stored, value: Any, quirks: Quirks) -> Any:
    """Return the fill value meant by ``value``, in the JSON type for ``stored``; ``value`` itself if it has it, or is invalid."""
    kind = stored.kind
    if kind in "iuf" and isinstance(value, str) and _INTEGER.fullmatch(value):
        quirks.accept("fill_value", f"fill_value {shortened(value)} of a number is a string")
        return int(value)
    if kind in "SU" and type(value) in (int, float):
        quirks.accept("fill_value", f"fill_value {shortened(value)} of a string is a number")
        text = json.dumps(value)
        return standard_b64encode(text.encode("ascii")).decode("ascii") if kind == "S" else text
    return value
