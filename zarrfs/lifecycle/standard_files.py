"""Standard input, output and error of a process that was started with one of them closed, or not writable.

``zarrfs mount -f x m 2>&-``: the kernel gives each opened file the lowest free number. A value of a store, being written, would be
standard error: libraries and child processes would write their messages into it. Python then has no `sys.stderr` either, which libraries
use without a check.

``zarrfs umount m 2>log`` on a full disk, or in a pipe whose reader has ended: Python replaces the exit code by 120 if its last flush
fails.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def open_missing() -> None:
    """Open /dev/null in place of closed standard files. Called before any other file is opened."""
    try:
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(descriptor, True)
        os.close(descriptor)
    except OSError:
        # A folder tree without devices: nothing better is available.
        return
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115 (open as long as the process)


def end(code: int) -> NoReturn:
    """End this process with ``code``, also where output cannot be written."""
    for name in ("stdout", "stderr"):
        try:
            if (stream := getattr(sys, name)) is not None:
                stream.flush()
        except OSError:
            setattr(sys, name, None)
    sys.exit(code)
