"""How long the tests are: as many examples, and as large stores, as there is time for.

ZARRFS_EXAMPLES multiplies the examples of each test: a tenth by default, a fifth in ``.ci/run``, more than 1 in ``make soak``, whose
examples are others each time. The rest are the same each time: who changes nothing sees nothing fail. From a fifth on, tests marked
``full_length`` run; from 1 on, those marked ``soak`` do, and what fills memory or folders has its full size (`share`).
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

_FACTOR = float(os.environ.get("ZARRFS_EXAMPLES", "0.1"))
_LEAST = 5

LEAST = _FACTOR < 0.2
"""Whether no more is asked for than that nothing is broken altogether."""

FULL = _FACTOR >= 1
"""Whether stores have their full size."""

MARKED = _FACTOR >= 0.2
"""Whether tests marked ``full_length`` run."""


def tries(count: int, **more: Any) -> settings:
    """So many examples, times the factor; ``more`` as of `hypothesis.settings`. No judgement by the clock: tests run beside others."""
    return settings(max_examples=max(min(count, _LEAST), round(count * _FACTOR)), deadline=None, derandomize=_FACTOR <= 1, **more)


def share(amount: int) -> int:
    """The amount, or a quarter of it: for bombs whose bound is a quarter as high, too, and for what grows with a number."""
    return amount if FULL else amount // 4


unhurried = tries(50)

# What tests get that ask for nothing.
settings.register_profile("zarrfs", tries(100))
settings.load_profile("zarrfs")
