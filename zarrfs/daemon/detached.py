"""A mount that was detached from its mountpoint and still exists.

The kernel keeps it while a file of it is open or a process has its working folder in it (``umount -l``), and as long as another mount
namespace has a copy of it: a container, a service, an ``unshare`` started while it was mounted, which an umount outside does not reach.
The daemon then gets no event of the umount, and a caller waiting for its end would wait for the end of that namespace. Open files are
waited for. An unused copy is not.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from zarrfs import threads
from zarrfs.lifecycle import namespaces

log = logging.getLogger(__name__)

UNUSED_SECONDS = 10.0
"""Time without open files and requests after which the mount counts as unused."""


class Detached:
    """Watches the mount with this ``device`` number.

    ``in_use()``: True if something of it is open; ``asked()``: number of requests so far; ``announce``: reports a state.
    """

    def __init__(
        self, device: str, *, in_use: Callable[[], bool], asked: Callable[[], int], announce: Callable[[str], Awaitable[None]]
    ) -> None:
        self._device = device
        self._in_use = in_use
        self._asked = asked
        self._announce = announce

    async def unused(self, every: float) -> None:
        """Wait until it is mounted nowhere in this namespace and unused. Checks every ``every`` seconds."""
        table = namespaces.MountTable()
        try:
            while table.lists(self._device):  # noqa: ASYNC110 (the kernel reports a change of the table to poll(2) only, and this costs no more)
                await trio.sleep(every)
        finally:
            table.close()
        announced = False
        since, asked = trio.current_time(), self._asked()
        while trio.current_time() - since < UNUSED_SECONDS:
            await trio.sleep(min(every, UNUSED_SECONDS))
            if self._in_use() or self._asked() != asked:
                since, asked = trio.current_time(), self._asked()
                if self._in_use() and not announced:
                    await self._announce("detached, ends when its open files are closed")
                    announced = True
        await self._announce(f"detached, {await self._where()}: unused for {UNUSED_SECONDS:g} s, ends now")

    async def _where(self) -> str:
        found = await threads.io(namespaces.holding, self._device, abandon_on_cancel=True)
        if not found:
            return "still held by an unknown process"
        return "still mounted in the mount namespace of " + ", ".join(f"{each.name} ({each.pid})" for each in found[:5])
