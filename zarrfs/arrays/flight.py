"""One request shared by all tasks that need its result: they share its answer, and the store's failure to answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import trio

from zarrfs.errors import GenerationMismatch, StoreError

K = TypeVar("K")


class Flight:
    """A request in flight. One task sends it, in `under_way`; others wait until it has `landed`.

    A store error is raised in all of them: if each sent its own request to a store that hangs, the last of many would wait for as many
    deadlines. Any other end (cancellation, a replaced value) concerns the sender alone.
    """

    __slots__ = ("_landed", "error")

    def __init__(self) -> None:
        self._landed = trio.Event()
        self.error: StoreError | None = None

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Run the request in the body."""
        try:
            yield
        except GenerationMismatch:
            raise
        except StoreError as error:
            self.error = error.again()
            raise
        finally:
            self.land()

    def land(self) -> None:
        """Mark the request as over, or as never sent."""
        self._landed.set()

    async def landed(self) -> None:
        """Return when the request is over; the caller checks for its result. Raises the store's error."""
        await self._landed.wait()
        if self.error is not None:
            raise self.error.again()


class Flights(Generic[K]):
    """The requests in flight, at most one for each key."""

    def __init__(self) -> None:
        self._flights: dict[K, Flight] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._flights

    async def joined(self, key: K) -> bool:
        """Wait for the request for ``key``; return False, without a checkpoint, if there is none. Raises the store's error."""
        flight = self._flights.get(key)
        if flight is None:
            return False
        await flight.landed()
        return True

    @contextmanager
    def started(self, key: K) -> Iterator[None]:
        """Run the request for ``key`` in the body. No checkpoint may follow a `joined` that returned False."""
        flight = self._flights[key] = Flight()
        with flight.under_way():
            try:
                yield
            finally:
                del self._flights[key]
