"""Locks by name, and the patience of those who wait for them."""

from __future__ import annotations

import pytest
from trio.testing import trio_test

from zarrfs.errors import LockHeld
from zarrfs.stores.locks import LockTable, waiting_at_most


@trio_test
async def test_a_lock_that_nobody_holds_is_taken_without_any_patience() -> None:
    """A mount left operations that it could have completed, once it had spent its patience on those of others."""
    locks = LockTable()
    with waiting_at_most(0):
        async with locks.hold("a"):
            with pytest.raises(LockHeld):
                async with locks.hold("a"):
                    raise AssertionError
        async with locks.hold("a"):
            pass
