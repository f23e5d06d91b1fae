"""Parser of a user's name for a store: a path, a URL, or layers of them.

A name that begins like ``zip:/``, or is a bare scheme like ``memory:``, is a URL in every working directory, even if a file has that
name: another user may own the directory. (``./zip:/x`` is a path.) Any other name of an existing file or folder is a path. Else a name
with a scheme is a URL, whose layers ``|`` joins as in the URL pipelines that zarr-python is adopting (``x.zip|zip:path``).
Supported are a path as the first layer and an archive at that path as the second; further layers are archives of the same kind inside
it (``x.zip|zip:inner.zip|zip:path``). The last layer of any URL may be ``unsharded:``, which is no archive:
`zarrfs.transformers.unsharded` over the store.

Nothing is opened here, and no backend is imported for a path, so that locating a store is fast.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from zarrfs import registry
from zarrfs.errors import UsageError
from zarrfs.stores import own_files

if TYPE_CHECKING:
    from zarrfs.stores.base import StorePlugin

UNSHARDED = "unsharded"
"""The scheme of the layer that shows the chunks of sharded arrays under keys of their own."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def local_path(url: str) -> str | None:
    """Return the real path of a store in the file system of this machine; None for any other store."""
    parsed = parse(url)
    return os.path.realpath(parsed.location) if parsed.is_local else None


def absolute(url: str) -> str:
    """Return ``url`` with its path, if it has one, made absolute. Raises `UsageError` as `zarrfs.stores.own_files.absolute`."""
    parsed = parse(url)
    if not parsed.is_local:
        return url
    path = own_files.absolute(parsed.location)
    over = f"|{UNSHARDED}:" if parsed.unsharded else ""
    if parsed.layer is not None:
        return f"{path}|{parsed.layer.schemes[0]}:{parsed.prefix}{over}"
    return path + over if parsed.scheme is None else f"{parsed.scheme}:{path}{over}"


@dataclass(frozen=True)
class StoreUrl:
    """A parsed URL. ``scheme`` is None for a path; ``location`` is the path or what follows the scheme.

    ``layer`` is the kind of archive of which only the keys below ``prefix`` are used. Further layers are in ``prefix``:
    ``inner.zip|zip:path``. ``unsharded``: the caller of `open_store` puts that layer over the store.
    """

    scheme: str | None
    location: str
    layer: StorePlugin | None = None
    prefix: str = ""
    unsharded: bool = False

    @property
    def is_local(self) -> bool:
        """True if ``location`` is a path of this machine."""
        return self.scheme is None or any(self.scheme in plugin.schemes and plugin.open_inside for plugin in store_plugins())


def parse(url: str) -> StoreUrl:
    if not url:
        raise UsageError("no store given: expected a path or a URL")
    if not _is_url_anywhere(url) and os.path.lexists(url):
        return StoreUrl(None, url)
    first, *layers = url.split("|")
    if layers and layers[-1].partition(":")[:2] == (UNSHARDED, ":"):
        below, _, last = url.rpartition("|")
        if last != f"{UNSHARDED}:":
            raise UsageError(f"{url}: the layer {UNSHARDED}: has no path")
        store = parse(below)
        if store.unsharded:
            raise UsageError(f"{url}: one layer {UNSHARDED}: shows all that there is to show")
        return replace(store, unsharded=True)
    if layers:
        return _layered(url, first, layers)
    match = _SCHEME.match(first)
    if match is None:
        return StoreUrl(None, first)
    scheme, location = match[1].lower(), first[match.end() :]
    if scheme != "file":
        if (inner := _SCHEME.match(location)) is not None and location.startswith("//", inner.end()):
            raise UsageError(
                f"{url}: {scheme}: is followed by a path, not by another URL; layers are joined as in URL|{scheme}:PREFIX"
            )
        parsed_url = StoreUrl(scheme, location)
        if not location and parsed_url.is_local:
            raise UsageError(f"{url}: {scheme}: is followed by a path")
        return parsed_url
    try:
        parsed = urlsplit(first)
    except ValueError as error:
        raise UsageError(f"{url}: {error}") from error
    if parsed.netloc not in ("", "localhost") or not parsed.path.startswith("/"):
        raise UsageError(f"{url}: a file URL is file:///absolute/path")
    return StoreUrl(None, unquote(first[match.end() :].removeprefix(f"//{parsed.netloc}"), errors="surrogateescape"))


def _is_url_anywhere(text: str) -> bool:
    """Return True if ``text`` has a scheme and then an absolute path, another layer, or nothing."""
    match = _SCHEME.match(text)
    return match is not None and text[match.end() : match.end() + 1] in ("", "/", "|")


def _layered(url: str, first: str, layers: list[str]) -> StoreUrl:
    """Return the URL of an archive at a path, and of the prefix in it."""
    below = parse(first)
    scheme, colon, prefix = layers[0].partition(":")
    plugin = _plugin(scheme.lower()) if colon else None
    further = [layer.partition(":") for layer in layers[1:]]
    is_same = all(each and plugin is not None and kind.lower() in plugin.schemes for kind, each, _ in further)
    if not is_same or not below.is_local or plugin is None or plugin.open_inside is None:
        kinds = ", ".join(f"PATH|{each.schemes[0]}:PREFIX" for each in store_plugins() if each.open_inside is not None)
        raise UsageError(f"{url}: unsupported layers (joined by '|'); supported are {kinds}, and {UNSHARDED}: as the last one")
    if below.scheme is not None and below.scheme not in plugin.schemes:
        raise UsageError(f"{url}: conflicting kinds {below.scheme} and {scheme}")
    inside = f"|{plugin.schemes[0]}:".join((prefix, *(path for _, _, path in further)))
    return StoreUrl(below.scheme, below.location, plugin, inside)


def _plugin(scheme: str) -> StorePlugin | None:
    return next((plugin for plugin in store_plugins() if scheme in plugin.schemes), None)


def plugin_of_scheme(scheme: str, url: str) -> StorePlugin:
    plugin = _plugin(scheme)
    if plugin is not None:
        return plugin
    known = sorted({scheme for plugin in store_plugins() for scheme in plugin.schemes})
    raise UsageError(f"{url}: unknown kind of store {scheme!r}; expected a path, or one of {', '.join(f'{s}:' for s in known)}")


def store_plugins() -> list[StorePlugin]:
    return sorted(registry.plugins("zarrfs.stores"), key=lambda plugin: plugin.priority)
