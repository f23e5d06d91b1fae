"""Settings of hypothesis for tests that run beside others: no judgement by the clock, and as many examples as there is time for.

ZARRFS_EXAMPLES multiplies the examples of each test: a quarter by default, a half in ``.ci/run``, more than 1 in ``make soak``, whose
examples are others each time. The rest are the same each time: who changes nothing sees nothing fail.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

_FACTOR = float(os.environ.get("ZARRFS_EXAMPLES", "0.25"))
_LEAST = 5


def tries(count: int, **more: Any) -> settings:
    """So many examples, times the factor; ``more`` as of `hypothesis.settings`."""
    return settings(max_examples=max(min(count, _LEAST), round(count * _FACTOR)), deadline=None, derandomize=_FACTOR <= 1, **more)


unhurried = tries(50)

# What tests get that ask for nothing.
settings.register_profile("zarrfs", tries(100))
settings.load_profile("zarrfs")
