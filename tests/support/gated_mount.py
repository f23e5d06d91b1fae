"""The daemon in the foreground, over a store that blocks all writes until SIGUSR2.

    python gated_mount.py CONFIG EVERY    # the MountConfig as JSON; seconds between two progress lines

Prints a line on stdout when the mount is usable. SIGUSR2 unblocks all waiting and later writes.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import trio

# This file is run as a script from any directory, so the checkout is not on the path.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.stores import WaitingStore
from zarrfs.daemon import serve as daemon
from zarrfs.daemon import systemd
from zarrfs.options import log_file
from zarrfs.options.config import MountConfig
from zarrfs.stores.base import Store
from zarrfs.stores.opening import open_store


def main(config_json: str, every: str) -> int:
    config = MountConfig.from_json(config_json)
    log_file.configure(config.log_level, config.log_file)

    async def serve() -> int:
        store = WaitingStore(await open_store(config.store), "set")

        async def open_gated(url: str, read_only: bool = False) -> Store:
            return store

        async def let_go() -> None:
            with trio.open_signal_receiver(signal.SIGUSR2) as signals:
                async for _ in signals:
                    store.let_go()

        daemon.open_store = open_gated
        async with trio.open_nursery() as nursery:
            nursery.start_soon(let_go)
            code = await daemon.serve(
                config,
                lambda: print("mounted", flush=True),
                lambda line: print(line, file=sys.stderr, flush=True),
                float(every),
                systemd.service_manager(),
            )
            nursery.cancel_scope.cancel()
        return code

    return trio.run(serve)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
