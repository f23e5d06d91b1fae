"""Length of the tests: number of examples, and size of stores.

ZARRFS_EXAMPLES multiplies the examples of each test: a tenth by default, a fifth in ``.ci/run``, more than 1 in ``make soak``. Only
``make soak`` draws different examples each time: without a change, no test begins to fail. From a fifth on, tests marked
``full_length`` run; from 1 on, those marked ``soak`` run, and large allocations and folders have their full size (`share`).
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

_FACTOR = float(os.environ.get("ZARRFS_EXAMPLES", "0.1"))
_LEAST = 5

LEAST = _FACTOR < 0.2
"""True if the tests only look for complete breakage."""

FULL = _FACTOR >= 1
"""True if stores have their full size."""

MARKED = _FACTOR >= 0.2
"""True if tests marked ``full_length`` run."""


def tries(count: int, **more: Any) -> settings:
    """Return settings with that many examples times the factor, without deadlines, since tests run in parallel.

    ``more`` are further `hypothesis.settings`.
    """
    return settings(max_examples=max(min(count, _LEAST), round(count * _FACTOR)), deadline=None, derandomize=_FACTOR <= 1, **more)


def share(amount: int) -> int:
    """Return the amount, or a quarter of it: for bombs whose bound is also a quarter, and for costs that grow with a number."""
    return amount if FULL else amount // 4


unhurried = tries(50)

# The default for tests without settings of their own.
settings.register_profile("zarrfs", tries(100))
settings.load_profile("zarrfs")
