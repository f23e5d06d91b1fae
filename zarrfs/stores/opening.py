"""Opening of a store from a user's path or URL: see `zarrfs.stores.urls`."""

from __future__ import annotations

import errno
import os

from zarrfs import threads
from zarrfs.errors import StoreAccessDenied, StoreNotFound, UsageError
from zarrfs.stores import own_files
from zarrfs.stores.base import Store, StorePlugin
from zarrfs.stores.urls import parse, plugin_of_scheme, store_plugins


async def open_store(url: str, read_only: bool = False) -> Store:
    """Open the store that ``url`` names, without the layer `StoreUrl.unsharded`; the caller closes it.

    Raises `UsageError` for an invalid URL, `StoreNotFound`, `StoreAccessDenied`; each with a one-line message for users.
    """
    parsed = parse(url)
    if parsed.layer is not None:
        plugin, prefix = parsed.layer, parsed.prefix
        assert plugin.open_inside is not None
        return await plugin.open_inside(parsed.location, prefix, read_only)
    if parsed.scheme is not None:
        return await plugin_of_scheme(parsed.scheme, url).open(parsed.location, read_only)
    plugin = await threads.io(_claimant, parsed.location, abandon_on_cancel=True)
    return await plugin.open(parsed.location, read_only)


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
        os.stat(path)
    except PermissionError as error:
        raise StoreAccessDenied(f"{path} may not be read", key=path) from error
    except OSError as error:
        raise StoreNotFound(f"there is no store {path}: {error.strerror}", key=path) from error
    except ValueError as error:
        raise UsageError(f"{path!r} cannot be a path: {error}") from error
    raise StoreNotFound(f"{path} is not a store: neither a folder nor a supported file", key=path)
