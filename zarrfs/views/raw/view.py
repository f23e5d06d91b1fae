"""``raw/``: every store key as a file, byte for byte, as a directory store would hold it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from zarrfs.hierarchy.node_changes import NodeChange
from zarrfs.keys import Key, Prefix
from zarrfs.stores.change import Change
from zarrfs.vfs.content import Content
from zarrfs.vfs.node import Directory
from zarrfs.views.base import Affected, NamedEntry, View, ViewContext, ViewPlugin
from zarrfs.views.raw.bound import BoundFolders
from zarrfs.views.raw.directory import RawDirectory
from zarrfs.views.raw.value import VIEW, RawValue, ident, is_changing, names_of


class RawView(View):
    """See the module's text."""

    shows_keys = True

    def __init__(self, context: ViewContext) -> None:
        self._context = context
        self._folders = BoundFolders(context.store, partial(is_changing, context))

    def root(self) -> Directory:
        return RawDirectory(self._context, self._folders, Prefix(""))

    def follow(self, old: Prefix, new: Prefix) -> None:
        context = self._context
        context.staging.rekey_below(ident(old), lambda content: _moved(content, old, new))
        context.temporaries.move_below(ident(old), ident(new))
        context.times.move(ident(old), ident(new))
        for prefix in [prefix for prefix in context.empty_prefixes if prefix.startswith(old)]:
            context.empty_prefixes.discard(prefix)
            context.empty_prefixes.add(Prefix(new + prefix[len(old) :]))
        self._folders.moved(old, new)

    def names_of(self, prefix: Prefix) -> Iterable[NamedEntry]:
        return [(names_of(prefix), True)]

    def affected(self, change: Change, nodes: Iterable[NodeChange]) -> Iterable[Affected]:
        if change.queued:
            return
        yield Affected(names_of(change.target), gone=change.kind in ("erase", "unknown", "rmdir"), content=change.kind != "times")


def _moved(content: Content, old: Prefix, new: Prefix) -> Content:
    """Return the same content at its new key: staged bytes are published through it."""
    content.ident = ident(new) + content.ident[len(ident(old)) :]
    if isinstance(content, RawValue):
        content.key = Key(new + content.key[len(old) :])
    return content


PLUGIN = ViewPlugin(
    VIEW,
    "every key of the store, byte for byte; written values are stored unchanged",
    RawView,
    order=0,
    example=("ls -lR raw", "the keys of the store"),
)
