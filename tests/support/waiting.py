"""Waiting for what a mount or another program does in its own time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

PATIENCE = 30
"""Seconds."""


def until(seen: Callable[[], object]) -> None:
    """Wait until ``seen()`` is true; errors of a file that is just being changed count as false."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(OSError, AssertionError):
            if seen():
                return
    assert seen()
