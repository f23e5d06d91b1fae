"""The daemon, over a store that hangs on request.

    python hung_mount.py CONFIG    # the MountConfig as JSON

Prints ``mounted`` when the mount is usable, then a line for each line of input: ``hang PATTERN`` (requests for matching places, or all
with ``*``, wait from now on; patterns accumulate), ``hang PATTERN OPERATION...`` (only these operations), ``answer`` (all continue).
Ends when it is unmounted; the exit code is 7, with the reason on stderr, if something could not be stored.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import trio

# This file is run as a script from any directory, so the checkout is not on the path.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.stores import HangingStore
from zarrfs.daemon import serve as daemon
from zarrfs.daemon import systemd
from zarrfs.errors import NotPublished
from zarrfs.options import log_file
from zarrfs.options.config import MountConfig
from zarrfs.stores.base import Store
from zarrfs.stores.opening import open_store


def main(config_json: str) -> int:
    config = MountConfig.from_json(config_json)
    log_file.configure(config.log_level, config.log_file)

    def say(line: str) -> None:
        print(line, flush=True)

    async def serve() -> int:
        store = HangingStore(await open_store(config.store))

        async def open_hanging(url: str, read_only: bool = False) -> Store:
            return store

        def obey(line: str) -> None:
            match line.split():
                case ["hang", pattern, *operations]:
                    store.hang(pattern, *operations)
                case ["answer"]:
                    store.answer()
            say("done")

        def listen(token: trio.lowlevel.TrioToken) -> None:
            for line in sys.stdin:
                token.run_sync_soon(obey, line)

        daemon.open_store = open_hanging
        # The thread ends with the process.
        threading.Thread(target=listen, args=(trio.lowlevel.current_trio_token(),), daemon=True).start()
        return await daemon.serve(config, lambda: say("mounted"), log_file.log.info, 0.1, systemd.service_manager())

    try:
        return trio.run(serve)
    except* NotPublished as errors:
        print(*errors.exceptions, file=sys.stderr, flush=True)
    return 7


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
