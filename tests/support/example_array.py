"""The array that every module of ``tests/conformance`` writes in the words of its text, and what zarrfs does in most rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

WHOLE = np.array([[1, 2, 3], [4, 5, 7]], "<i2")
"""Its elements; 7 is its fill value."""
LEFT = np.array([[1, 2], [4, 5]], "<i2")
"""Its first chunk."""
RIGHT = np.array([[3, -1], [7, -1]], "<i2")
"""Its other chunk, half of which lies outside."""
REFUSED = "as stated: else refused, and the reason names the key"
OTHERS = "as stated; anything else is refused"


def with_members(plain: Mapping[str, Any], members: Mapping[str, Any]) -> dict[str, Any]:
    """The document ``plain`` with these members; `...` leaves one out."""
    return {name: value for name, value in {**plain, **members}.items() if value is not ...}
