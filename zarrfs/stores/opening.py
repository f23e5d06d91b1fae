"""Opening of a store from a user's path or URL: see `zarrfs.stores.urls`."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from zarrfs import threads
from zarrfs.errors import StoreAccessDenied, StoreError, StoreNotFound, StoreTimeout, UsageError
from zarrfs.stores import own_files
from zarrfs.stores.archive_file import ArchiveFile
from zarrfs.stores.base import Store, StorePlugin
from zarrfs.stores.os_errors import ABSENT
from zarrfs.stores.urls import StoreUrl, parse, plugin_of_scheme, store_plugins

T = TypeVar("T")

_EVERY = 0.5
# In this time: what is used by nothing but the wait, and its progress bar.
_LEAST = 0.05, 4096


async def open_store(url: str, read_only: bool = False) -> Store:
    """Open the store that ``url`` names, without the layer `StoreUrl.unsharded`; the caller closes it.

    Raises `UsageError` for an invalid URL, `StoreNotFound`, `StoreAccessDenied`, and `StoreError` if that is unknown; each with a
    one-line message for users.
    """
    parsed = await _parsed(url)
    if parsed.layer is not None:
        plugin, prefix = parsed.layer, parsed.prefix
        assert plugin.open_inside is not None
        return await plugin.open_inside(parsed.location, prefix, read_only)
    if parsed.scheme is not None:
        return await plugin_of_scheme(parsed.scheme, url).open(parsed.location, read_only)
    plugin = await threads.io(_claimant, parsed.location, abandon_on_cancel=True)
    return await plugin.open(parsed.location, read_only)


async def in_time(seconds: float, url: str, opening: Callable[[], Awaitable[T]]) -> T:
    """Return ``await opening()``, of the store ``url``.

    Raises `StoreTimeout` after ``seconds`` without progress: an index may take longer, as long as it is being read.
    """
    failures: list[Exception] = []
    results: list[T] = []
    async with trio.open_nursery() as nursery:

        async def opened() -> None:
            try:
                results.append(await opening())
            except Exception as error:  # noqa: BLE001 - raised below, without the nursery's group
                failures.append(error)
            nursery.cancel_scope.cancel()

        nursery.start_soon(opened)
        work, last = _work_done(), trio.current_time()
        while trio.current_time() - last < seconds:
            await trio.sleep(min(_EVERY, seconds / 4))
            before, work = work, _work_done()
            if any(now - then > least for now, then, least in zip(work, before, _LEAST, strict=True)):
                last = trio.current_time()
        nursery.cancel_scope.cancel()
    if failures:
        raise failures.pop()
    if not results:
        raise StoreTimeout(f"opening {url}: the store did not answer within {seconds:g} s", key=url)
    return results.pop()


async def is_unsharded(url: str) -> bool:
    """Return `StoreUrl.unsharded`."""
    return (await _parsed(url)).unsharded


async def _parsed(url: str) -> StoreUrl:
    # A path is looked at, whose file system may not answer.
    return await threads.io(parse, url, abandon_on_cancel=True)


def _work_done() -> tuple[float, int]:
    """Return the seconds of the processor that this process has used, and the bytes that it has read."""
    with open("/proc/self/io") as file:
        return time.process_time(), sum(int(line.partition(":")[2]) for line in file if line.startswith(("rchar:", "read_bytes:")))


def _claimant(path: str) -> StorePlugin:
    try:
        os.close(own_files.open_store(path, os.O_PATH))
    except OSError as error:
        # Each store refuses it too; this is for the message.
        if error.errno == errno.EPERM:
            raise StoreAccessDenied(f"{path} is not opened by root: {error.strerror}", key=path) from error
    except ValueError:
        pass
    for plugin in store_plugins():
        if plugin.claims is not None and plugin.claims(path):
            return plugin
    try:
        status = os.stat(path)
    except PermissionError as error:
        raise StoreAccessDenied(f"{path} may not be read", key=path) from error
    except OSError as error:
        if error.errno not in ABSENT:
            # Such as ENOTCONN, of a mount whose daemon was killed: there may be a store.
            raise StoreError(f"opening {path}: {error.strerror}", key=path) from error
        raise StoreNotFound(f"there is no store {path}: {error.strerror}", key=path) from error
    except ValueError as error:
        raise UsageError(f"{path!r} cannot be a path: {error}") from error
    if stat.S_ISREG(status.st_mode):
        # No store recognizes a file that cannot be read: its error is the reason then.
        file = ArchiveFile(path)
        file.read(0, min(1, file.size), path)
    raise StoreNotFound(f"{path} is not a store: neither a folder nor a supported file", key=path)
