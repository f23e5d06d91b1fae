"""One request shared by all tasks that need its result: they share its answer, and the store's failure to answer."""

from __future__ import annotations

from contextlib import AbstractContextManager
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

    def under_way(self) -> Flight:
        """Run the request in the body of ``with``."""
        # No generator: each lookup of a node is a flight.
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # First: those who wait run at the next checkpoint, and would wait forever if the error could not be copied.
        self.land()
        if isinstance(error, StoreError) and not isinstance(error, GenerationMismatch):
            self.error = error.again()

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

    def started(self, key: K) -> AbstractContextManager[None]:
        """Run the request for ``key`` in the body. No checkpoint may follow a `joined` that returned False."""
        flight = self._flights[key] = _Listed(self._flights, key)
        return flight


class _Listed(Flight, Generic[K]):
    """A flight among others, until it has ended."""

    __slots__ = ("_flights", "_key")

    def __init__(self, flights: dict[K, Flight], key: K) -> None:
        super().__init__()
        self._flights = flights
        self._key = key

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        del self._flights[self._key]
        super().__exit__(kind, error, traceback)
