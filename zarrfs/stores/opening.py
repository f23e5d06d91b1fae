"""From what a person writes to a store: a path, a URL, or layers of them.

A plain path that exists is that path, whatever is in its name. Else a URL has a scheme, and layers are joined by ``|`` as in the URL
pipelines that zarr-python is taking up (``x.zip|zip:path``). Of them only those are known whose first layer is a path and whose second
one, the last, an archive there.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from zarrfs import registry, threads
from zarrfs.errors import StoreAccessDenied, StoreNotFound, UsageError
from zarrfs.stores.base import Store, StorePlugin

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


async def open_store(url: str, read_only: bool = False) -> Store:
    """The store that ``url`` names; the caller closes it.

    Raises `UsageError` for what makes no sense, `StoreNotFound`, `StoreAccessDenied`; each with one line that a person understands.
    """
    split = _split(url)
    if split.layer is not None:
        plugin, prefix = split.layer, split.prefix
        assert plugin.open_inside is not None
        return await plugin.open_inside(split.location, prefix, read_only)
    if split.scheme is not None:
        return await _of_scheme(split.scheme, url).open(split.location, read_only)
    plugin = await threads.io(_claimant, split.location, abandon_on_cancel=True)
    return await plugin.open(split.location, read_only)


def local_path(url: str) -> str | None:
    """Where in this machine's file system the store lies, free of symbolic links; None when it does not lie there."""
    split = _split(url)
    return os.path.realpath(split.location) if split.is_local else None


def absolute(url: str) -> str:
    """The same store, from wherever it is opened: its path made absolute, as far as it was written as one."""
    split = _split(url)
    if not split.is_local:
        return url
    path = os.path.abspath(split.location)
    if split.layer is not None:
        return f"{path}|{split.layer.schemes[0]}:{split.prefix}"
    return path if split.scheme is None else f"{split.scheme}:{path}"


@dataclass(frozen=True)
class _Split:
    """A URL taken apart. ``scheme`` is None for a path; ``location`` is the path or what follows the scheme; ``layer`` is the kind of
    archive of which only what is under ``prefix`` is meant."""

    scheme: str | None
    location: str
    layer: StorePlugin | None = None
    prefix: str = ""

    @property
    def is_local(self) -> bool:
        """Whether ``location`` is a path of this machine."""
        return self.scheme is None or any(self.scheme in plugin.schemes and plugin.open_inside for plugin in _plugins())


def _split(url: str) -> _Split:
    if not url:
        raise UsageError("no store is named: it is a path or a URL")
    if os.path.lexists(url):
        return _Split(None, url)
    first, *layers = url.split("|")
    if layers:
        return _layered(url, first, layers)
    match = _SCHEME.match(first)
    if match is None:
        return _Split(None, first)
    scheme, location = match[1].lower(), first[match.end() :]
    if scheme != "file":
        return _Split(scheme, location)
    try:
        parsed = urlsplit(first)
    except ValueError as error:
        raise UsageError(f"{url}: {error}") from error
    if parsed.netloc not in ("", "localhost") or not parsed.path.startswith("/"):
        raise UsageError(f"{url}: a file URL is file:///absolute/path")
    return _Split(None, unquote(first[match.end() :].removeprefix(f"//{parsed.netloc}"), errors="surrogateescape"))


def _layered(url: str, first: str, layers: list[str]) -> _Split:
    """A path to an archive, and what is meant of it."""
    below = _split(first)
    scheme, colon, prefix = layers[0].partition(":")
    plugin = _of_scheme(scheme.lower(), url) if colon else None
    if len(layers) > 1 or not below.is_local or plugin is None or plugin.open_inside is None:
        inside = ", ".join(f"PATH|{each.schemes[0]}:PREFIX" for each in _plugins() if each.open_inside is not None)
        raise UsageError(f"{url}: such stores inside of stores (layers joined by '|') cannot be opened yet, only {inside}")
    if below.scheme is not None and below.scheme not in plugin.schemes:
        raise UsageError(f"{url}: it cannot be both, {below.scheme} and {scheme}")
    return _Split(below.scheme, below.location, plugin, prefix)


def _of_scheme(scheme: str, url: str) -> StorePlugin:
    for plugin in _plugins():
        if scheme in plugin.schemes:
            return plugin
    known = sorted({scheme for plugin in _plugins() for scheme in plugin.schemes})
    raise UsageError(
        f"{url}: there is no kind of store {scheme!r}; a store is a path, or one of {', '.join(f'{s}:' for s in known)}"
    )


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
