"""A mount that was taken off its mountpoint and is not gone.

The kernel keeps it while a file of it is open or somebody stands in it (``umount -l``), and as long as any other mount namespace has a
copy of it: a container, a service, an ``unshare`` that began while it was mounted, and that an umount outside does not reach. The daemon
then hears nothing of the umount, and whoever waits for its end would wait for the end of that namespace. Open files are waited for. A
copy that nobody uses is not.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from zarrfs import threads
from zarrfs.lifecycle import namespaces

log = logging.getLogger(__name__)

UNUSED_SECONDS = 10.0
"""For so long nothing was open and nothing was asked for: nobody uses it."""


class Detached:
    """Watches the mount with this ``device`` number. ``in_use()``: whether something of it is open; ``asked()``: how many requests came;
    ``say``: tells it to whom it concerns."""

    def __init__(
        self, device: str, *, in_use: Callable[[], bool], asked: Callable[[], int], say: Callable[[str], Awaitable[None]]
    ) -> None:
        self._device = device
        self._in_use = in_use
        self._asked = asked
        self._say = say

    async def unused(self, every: float) -> None:
        """Return when it is mounted nowhere in this namespace, and nobody uses it. Looks every so many seconds."""
        table = namespaces.MountTable()
        try:
            while table.lists(self._device):  # noqa: ASYNC110 (the kernel tells it to a poll for nothing else, and this asks no more)
                await trio.sleep(every)
        finally:
            table.close()
        told = False
        since, asked = trio.current_time(), self._asked()
        while trio.current_time() - since < UNUSED_SECONDS:
            await trio.sleep(min(every, UNUSED_SECONDS))
            if self._in_use() or self._asked() != asked:
                since, asked = trio.current_time(), self._asked()
                if self._in_use() and not told:
                    await self._say("it is detached, and ends when the files that are open are closed")
                    told = True
        await self._say(f"it is detached, and {await self._where()}: nobody has used it for {UNUSED_SECONDS:g} s, so it ends now")

    async def _where(self) -> str:
        found = await threads.io(namespaces.holding, self._device, abandon_on_cancel=True)
        if not found:
            return "still held by somebody who cannot be seen"
        return "still mounted in the mount namespace of " + ", ".join(f"{each.name} ({each.pid})" for each in found[:5])
