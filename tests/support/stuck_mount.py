"""The daemon in the foreground, over a store that blocks forever at one point.

    python stuck_mount.py CONFIG WHERE    # the MountConfig as JSON; "read", "self", "close", "thread" or "lock"

* "read": reads never return, and there is no deadline.
* "self": in addition, a thread of the daemon itself waits for a read in the kernel; at SIGUSR2 the main thread fails immediately.
* "close": the store cannot be closed.
* "thread": a task in the background waits for a thread that never ends.
* "lock": staged data waits for a lock that is never released.

Prints a line on stdout when the mount is usable. The grace period at the end, beyond ``timeout``, is one second here.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import trio

# This file is run as a script from any directory, so the checkout is not on the path.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.stores import InterruptedStore
from zarrfs.daemon import serve, shutdown
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.keys import Key
from zarrfs.options import log_file
from zarrfs.options.config import MountConfig
from zarrfs.stores.base import Store
from zarrfs.stores.opening import open_store


class StuckStore(InterruptedStore):
    def __init__(self, inner: Store, where: str) -> None:
        super().__init__(inner)
        self._where = where

    async def interrupt(self, operation: str, target: str) -> None:
        if (
            self._where in ("read", "self")
            and operation in ("get", "get_partial_values", "get_with_stat")
            and target.endswith("0.0")
        ):
            await trio.sleep_forever()

    async def hold(self, key: Key) -> None:
        """Do nothing: a held value would be read without a request to this store."""

    async def aclose(self) -> None:
        if self._where == "close":
            await trio.sleep_forever()
        await super().aclose()


async def _in_a_thread() -> None:
    await trio.to_thread.run_sync(threading.Event().wait)


def _fail(number: int, frame: object) -> None:
    raise MemoryError


def main(config_json: str, where: str) -> int:
    config = MountConfig.from_json(config_json)
    log_file.configure(config.log_level, config.log_file)
    shutdown._SPARE_SECONDS = 1.0

    async def open_stuck(url: str, read_only: bool = False) -> Store:
        return StuckStore(await open_store(url, read_only), where)

    class StuckTree(MountTree):
        def __init__(self, config: MountConfig, store: Store, nursery: trio.Nursery) -> None:
            super().__init__(config, store, nursery)
            if where == "thread":
                nursery.start_soon(_in_a_thread)

        async def publish_all(self) -> list[tuple[str, str]]:
            if where == "lock":
                await trio.sleep_forever()
            return await super().publish_all()

    def ready() -> None:
        if where == "self":
            threading.Thread(target=Path(config.mountpoint, "raw/a/0.0").read_bytes, name="self", daemon=True).start()
        print("mounted", flush=True)

    if where == "self":
        signal.signal(signal.SIGUSR2, _fail)
    serve.open_store = open_stuck
    serve.MountTree = StuckTree  # type: ignore[misc]
    return trio.run(serve.serve, config, ready, log_file.log.info, 0.1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
