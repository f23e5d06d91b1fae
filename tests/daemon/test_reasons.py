"""What cannot be stored is remembered, of any number of files, in bounded memory."""

from __future__ import annotations

import tracemalloc

import pytest

from zarrfs.daemon.losses import Losses
from zarrfs.daemon.reasons import MOST_NBYTES, Reasons
from zarrfs.daemon.rescue import Rescue


@pytest.mark.parametrize("reason", ["no space", "漢" * 10_000], ids=["short", "long"])
def test_any_number_of_losses_takes_bounded_memory(reason: str) -> None:
    losses = Losses(Rescue(None, "/store"))
    tracemalloc.start()
    try:
        for number in range(120_000):
            losses.note(f"raw/{number}", f"{reason} {number}" if len(reason) < 10 or number < 2000 else reason)
        current, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert MOST_NBYTES / 2 < current < 1.5 * MOST_NBYTES
    assert losses.failures[0] == ("raw/0", f"{reason} 0") and losses.failures[-1][0] == "other files"


def test_what_is_removed_counts_no_more_and_what_is_not_remembered_always() -> None:
    reasons = Reasons()
    for attempt in range(10):
        for number in range(10_000):
            reasons.add(f"a/{number}", f"why {attempt}" * 20)
    assert reasons.listed() == [(f"a/{number}", "why 9" * 20) for number in range(10_000)]
    reasons.discard("a/0")
    reasons.discard("missing")
    reasons.add("b/0", "why")
    reasons.discard_below("a/")
    assert reasons.listed() == [("b/0", "why")]
    reasons.add("c/0", "x" * MOST_NBYTES)
    reasons.discard_below("")
    assert [name for name, _ in reasons.listed()] == ["other files"]
