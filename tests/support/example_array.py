"""The array that every module of ``tests/conformance`` stores in its layout and uses in most rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

WHOLE = np.array([[1, 2, 3], [4, 5, 7]], "<i2")
"""All elements; the fill value is 7."""
LEFT = np.array([[1, 2], [4, 5]], "<i2")
"""The first chunk."""
RIGHT = np.array([[3, -1], [7, -1]], "<i2")
"""The second chunk, half of which is outside the array."""
REFUSED = "as stated: else refused, and the reason names the key"
OTHERS = "as stated; anything else is refused"


def with_members(plain: Mapping[str, Any], members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document ``plain`` with these members; `...` removes one."""
    return {name: value for name, value in {**plain, **members}.items() if value is not ...}
