"""What a command does with a store's path before it opens the store, where the file system of the path may not answer.

That ends by the deadline of one store operation, and by a signal at once: see `zarrfs.lifecycle.apart`.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import TypeVar

from zarrfs.command.exit_codes import ended
from zarrfs.errors import MountpointUnusable, StoreTimeout
from zarrfs.lifecycle import apart
from zarrfs.lifecycle.dead_mounts import PATIENCE
from zarrfs.lifecycle.exit_report import Outcome
from zarrfs.options.config import MountConfig
from zarrfs.options.redact import public_url
from zarrfs.printable import printable

T = TypeVar("T")


def absolute(store: str, mountpoint: str = "") -> tuple[str, str]:
    """Return store and mountpoint with absolute paths: the daemon runs in another folder. Raises `UsageError`."""
    # Links are not resolved: whole-array files are named after the store as written.
    from zarrfs.lifecycle import mount_table
    from zarrfs.stores import urls

    return urls.absolute(store), mount_table.absolute(mountpoint) if mountpoint else ""


def located(config: MountConfig) -> MountConfig:
    """Return ``config`` with absolute paths of store and mountpoint.

    Raises `StoreTimeout` if the store's path does not answer, and `UsageError`.
    """
    # Not in the child, which would import the backends again.
    from zarrfs.stores import urls

    def find() -> list[str]:
        store, mountpoint = absolute(config.store, config.mountpoint)
        if (path := urls.local_path(store)) is not None:
            apart.look(path)
        return [store, mountpoint]

    store, mountpoint = _of_store(config, find)
    return dataclasses.replace(config, store=store, mountpoint=mountpoint)


def check_before(config: MountConfig) -> bool:
    """Check all that can be known before the store is opened, as `zarrfs.lifecycle.mountpoint.check`."""
    from zarrfs.lifecycle import mountpoint
    from zarrfs.stores import urls

    try:
        return apart.call(lambda: mountpoint.check(config, urls.local_path(config.store)), config.timeout + PATIENCE)
    except TimeoutError as error:
        what = f"mountpoint {config.mountpoint}: not checked: a file system (its own, or of store, cache or log) does not answer"
        raise MountpointUnusable(what, key=config.mountpoint) from error


def start(config: MountConfig, replaces_dead: bool, print_line: Callable[[str], None]) -> Outcome:
    """Start the daemon in the background, as `zarrfs.lifecycle.background.start`; report a dead mount that it has removed."""
    from zarrfs.lifecycle import background, mount_table, mountpoint, umount_table

    outcome, daemon = background.start(config)
    if outcome.exit_code == 0:
        # It outlives this process, and `python -X dev` must not warn that it is still running.
        daemon.returncode = 0
        umount_table.add(printable(public_url(config.source or config.store)), config.mountpoint)
    # A daemon that fails before its mount leaves the dead one.
    if replaces_dead and (outcome.exit_code == 0 or mount_table.mount_at(mount_table.resolved(config.mountpoint)) is None):
        print_line(mountpoint.removed(config.mountpoint))
    return outcome


def may_hang(config: MountConfig, run: Callable[[], int]) -> int:
    """Return the exit code of ``run()``, which uses the store; in a child, if that may be impossible to end."""
    from zarrfs.stores import urls

    def work() -> int:
        code = run()
        sys.stdout.flush()
        return code

    path = _of_store(config, lambda: urls.local_path(config.store))
    if path is None or not apart.is_needed(path):
        return run()
    return apart.command(lambda: ended(work, [config.store]))


def _of_store(config: MountConfig, function: Callable[[], T]) -> T:
    try:
        return apart.call(function, config.timeout)
    except TimeoutError as error:
        what = f"{public_url(config.store)}: the file system of the store did not answer within {config.timeout:g} s"
        raise StoreTimeout(what, key=config.store) from error
