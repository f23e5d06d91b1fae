"""One request shared by all tasks that need its result: they share its answer, and the store's failure to answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from zarrfs.errors import GenerationMismatch, StoreError


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
