"""The daemon in the foreground, with a task that blocks the event loop for half a second for each line on stdin.

    python hogged_mount.py CONFIG    # the MountConfig as JSON

Prints a line on stdout when the mount is usable, ``hogging`` when the loop is blocked, and ``free`` after it has continued for a while.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import trio

# This file is run as a script from any directory, so the checkout is not on the path.
sys.path.insert(0, str(Path(__file__).parents[2]))

from zarrfs.daemon import serve as daemon
from zarrfs.options import log_file
from zarrfs.options.config import MountConfig


async def hog() -> None:
    while True:
        await trio.lowlevel.wait_readable(0)
        if not os.read(0, 100):
            return
        print("hogging", flush=True)
        time.sleep(0.5)  # noqa: ASYNC251 (that is what it is for)
        await trio.sleep(0.1)
        print("free", flush=True)


async def serve(config: MountConfig) -> int:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hog)
        code = await daemon.serve(config, lambda: print("mounted", flush=True))
        nursery.cancel_scope.cancel()
    return code


if __name__ == "__main__":
    config = MountConfig.from_json(sys.argv[1])
    log_file.configure(config.log_level, config.log_file)
    sys.exit(trio.run(serve, config))
