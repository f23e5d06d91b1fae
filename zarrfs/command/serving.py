"""Run of a mount's daemon, in the foreground or in the background.

Apart from the command line: a daemon started by another process has no arguments to parse, and does not wait for a parser to be imported.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable

from zarrfs.command.exit_codes import cause, log_cause, outcome_of, print_line
from zarrfs.errors import ZarrfsError, is_want_of_memory
from zarrfs.lifecycle import interrupts
from zarrfs.lifecycle.parent import Parent
from zarrfs.options.config import MountConfig

log = logging.getLogger("zarrfs")


def serve(config: MountConfig, parent: Parent | None = None) -> int:
    """Run the daemon. Until the mount is usable, an error goes to the parent, which prints it; afterwards it goes to the log."""
    from zarrfs.options import log_file

    log_file.configure(config.log_level, config.log_file)
    try:
        ready = _until_ready(parent.ready if parent is not None else lambda: None)
        from zarrfs.daemon import garbage

        garbage.collect_nothing()
        import trio

        from zarrfs.daemon import serve, systemd
        from zarrfs.daemon.shutdown import EVERY

        # In the background a service manager waits for another process, which notifies it.
        manager = systemd.service_manager() if parent is None else systemd.NOBODY
        return trio.run(serve.serve, config, ready, print_line if parent is None else log.info, EVERY, manager)
    except Exception as error:
        outcome = outcome_of(error, [config.store])
        if parent is None:
            raise
        if not isinstance(cause(error), ZarrfsError) and not is_want_of_memory(error):
            log_cause(logging.CRITICAL, error, [config.store])
        if not parent.failed(outcome):
            log.critical("%s", outcome.message)
        return outcome.exit_code


def _until_ready(ready: Callable[[], None]) -> Callable[[], None]:
    """Let signals end this process until ``ready`` was called in the form returned, and not any more then.

    `zarrfs.daemon.shutdown` handles them as long as there is a mount. Afterwards the store is closed and the outcome reported, which a
    second Ctrl-C must not prevent: the exit code says whether something was lost.
    """
    was_ready = False

    def on_ready() -> None:
        nonlocal was_ready
        was_ready = True
        ready()

    def handle(number: int, frame: object) -> None:
        if not was_ready:
            interrupts.end_by(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, handle)
    return on_ready
