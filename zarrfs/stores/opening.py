"""From what a person writes to a store: a path, a URL, or layers of them.

A plain path that exists is that path, whatever is in its name. Else a URL has a scheme, and layers are joined by ``|`` as in the URL
pipelines that zarr-python is taking up (``s3://bucket/x.zip|zip:path``).
"""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from zarrfs import registry, threads
from zarrfs.errors import StoreAccessDenied, StoreNotFound, UsageError
from zarrfs.stores.base import Store, StorePlugin

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


async def open_store(url: str, read_only: bool = False) -> Store:
    """The store that ``url`` names; the caller closes it.

    Raises `UsageError` for what makes no sense, `StoreNotFound`, `StoreAccessDenied`; each with one line that a person understands.
    """
    scheme, location = _split(url)
    if scheme is not None:
        for plugin in _plugins():
            if scheme in plugin.schemes:
                return await plugin.open(location, read_only)
        known = sorted({scheme for plugin in _plugins() for scheme in plugin.schemes})
        raise UsageError(
            f"{url}: there is no kind of store {scheme!r}; a store is a path, or one of {', '.join(f'{s}:' for s in known)}"
        )
    plugin = await threads.io(_claimant, location)
    return await plugin.open(location, read_only)


def local_path(url: str) -> str | None:
    """Where in this machine's file system the store lies, free of symbolic links; None when it does not lie there."""
    scheme, location = _split(url)
    return os.path.realpath(location) if scheme is None else None


def _split(url: str) -> tuple[str | None, str]:
    """``(scheme, what follows it)``; the scheme is None for a path."""
    if not url:
        raise UsageError("no store is named: it is a path or a URL")
    if os.path.lexists(url):
        return None, url
    first, *layers = url.split("|")
    if layers:
        raise UsageError(f"{url}: stores inside of stores (layers joined by '|') cannot be opened yet; name one store")
    match = _SCHEME.match(first)
    if match is None:
        return None, first
    scheme, location = match[1].lower(), first[match.end() :]
    if scheme != "file":
        return scheme, location
    parsed = urlsplit(first)
    if parsed.netloc not in ("", "localhost") or not parsed.path.startswith("/"):
        raise UsageError(f"{url}: a file URL is file:///absolute/path")
    return None, unquote(first[match.end() :].removeprefix(f"//{parsed.netloc}"), errors="surrogateescape")


def _claimant(path: str) -> StorePlugin:
    for plugin in _plugins():
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
    raise StoreNotFound(f"{path} is not a store: it is neither a folder nor of another kind that is known here", key=path)


def _plugins() -> list[StorePlugin]:
    return sorted(registry.plugins("zarrfs.stores"), key=lambda plugin: plugin.priority)
