"""The daemon, over a slow or failing store.

    python slow_mount.py CONFIG SECONDS    # the MountConfig as JSON; each operation on values takes SECONDS

A get of a key that ends in ``raises`` raises an exception that no store should raise. Prints a line when the mount is usable; ends
when it is unmounted.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio

# This file is run as a script from any directory, so the checkout is not on the path.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.stores import InterruptedStore
from zarrfs.daemon import serve, systemd
from zarrfs.options import log_file
from zarrfs.options.config import MountConfig
from zarrfs.stores.base import Store
from zarrfs.stores.opening import open_store


class SlowStore(InterruptedStore):
    def __init__(self, inner: Store, seconds: float) -> None:
        super().__init__(inner)
        self._seconds = seconds

    async def interrupt(self, operation: str, target: str) -> None:
        if operation in ("get", "get_partial_values", "set"):
            await trio.sleep(self._seconds)
        if target.endswith("raises") and operation != "stat":
            raise ZeroDivisionError("a defect of this store")


def main(config_json: str, seconds: str) -> int:
    config = MountConfig.from_json(config_json)
    log_file.configure(config.log_level, config.log_file)

    async def open_slowly(url: str, read_only: bool = False) -> Store:
        return SlowStore(await open_store(url, read_only), float(seconds))

    serve.open_store = open_slowly
    return trio.run(serve.serve, config, lambda: print("mounted", flush=True), log_file.log.info, 0.1, systemd.service_manager())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
