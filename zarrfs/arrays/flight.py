"""One request for all who want the same: its answer, and the store's failure to answer, are everybody's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from zarrfs.errors import GenerationMismatch, StoreError


class Flight:
    """A request in flight. One task sends it, `under_way`; others wait for it to have `landed`.

    An error of the store is raised to all of them. If each began anew, on a store that hangs the last of many would wait as many
    deadlines. What ends it otherwise (cancellation, a value that was replaced) concerns the sender alone.
    """

    __slots__ = ("_landed", "error")

    def __init__(self) -> None:
        self._landed = trio.Event()
        self.error: StoreError | None = None

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Around the request."""
        try:
            yield
        except GenerationMismatch:
            raise
        except StoreError as error:
            self.error = error
            raise
        finally:
            self.land()

    def land(self) -> None:
        """It is over, or was not sent."""
        self._landed.set()

    async def landed(self) -> None:
        """Return when the request is over: the caller looks whether its answer is there. Raises the store's error."""
        await self._landed.wait()
        if self.error is not None:
            raise self.error
