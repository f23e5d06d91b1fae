"""A view that shows each node as a folder, in any format."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from zarrfs.hierarchy.node_changes import NodeChange
from zarrfs.keys import ROOT, NodePath, Prefix
from zarrfs.stores.change import Change
from zarrfs.vfs import names
from zarrfs.vfs.node import Directory
from zarrfs.views.base import Affected, NamedEntry, View, path_of
from zarrfs.views.nodes.folder import NodeFolder
from zarrfs.views.nodes.undecided import chunks_from_undecided
from zarrfs.views.nodes.view_format import ViewFormat


class NodeView(View):
    """The view in the format ``view_format``."""

    def __init__(self, view_format: ViewFormat) -> None:
        self._view_format = view_format
        view_format.context.on_array_written.append(partial(chunks_from_undecided, view_format))

    def root(self) -> Directory:
        return NodeFolder(self._view_format, ROOT)

    def affected(self, change: Change, nodes: Iterable[NodeChange]) -> Iterable[Affected]:
        view_format = self._view_format
        forgotten = None
        copies: set[NodePath] = set()
        for node in nodes:
            folder = _names(node.path)
            if node.coords is not None:
                keys = view_format.known_keys(node.path)
                if keys is None:
                    # The array was never looked up in this view.
                    continue
                key = keys.encode(node.coords)
                # A file that was temporary until now needs a new lookup.
                gone = change.kind in ("erase", "unknown") or view_format.ident(node.path, key) in view_format.state.became_chunks
                yield Affected((*folder, *key.split("/")), gone=gone, content=change.kind != "times")
            else:
                if change.is_prefix and change.kind == "erase" and node.path.prefix.startswith(change.target):
                    ident = view_format.ident(node.path, "")
                    if forgotten is None or not ident.startswith(forgotten):
                        view_format.state.forget_below(node.path)
                        view_format.copies.forget_below(node.path)
                        forgotten = ident
                yield Affected(folder, gone=True)
                for document in dict.fromkeys((*view_format.documents, view_format.copy_document)):
                    yield Affected((*folder, document), gone=True, content=change.kind != "times")
                # The groups above are the same for all nodes in a group: yield each once.
                for group in [each for each in view_format.copies.at_and_above(node.path) if each not in copies]:
                    copies.add(group)
                    yield Affected((*_names(group), view_format.copy_document), content=change.kind != "times")

    def follow(self, old: Prefix, new: Prefix) -> None:
        before, after = path_of(old), path_of(new)
        if before is not None and after is not None:
            self._view_format.context.follow_names(self._view_format.ident(before, ""), self._view_format.ident(after, ""))
            self._view_format.state.moved(before, after)
            self._view_format.copies.moved(before, after)

    def lost(self, prefix: Prefix) -> Iterable[NamedEntry]:
        if (path := path_of(prefix)) is not None:
            self._view_format.context.lose_names(self._view_format.ident(path, ""))
            self._view_format.state.forget_below(path)
            self._view_format.copies.forget_below(path)
        return self.names_of(prefix)

    def names_of(self, prefix: Prefix) -> Iterable[NamedEntry]:
        path = path_of(prefix)
        return [] if path is None else [(_names(path), True)]

    def left(self) -> Iterable[tuple[str, bool]]:
        view_format = self._view_format
        left = [(each, each.rpartition("/")[2]) for each in view_format.context.temporaries.left(f"{view_format.view}/")]
        # A copied file of an ignored document (a consolidated copy) contains nothing that its nodes do not.
        return [(each, view_format.looks_like_chunk(name)) for each, name in left if name not in view_format.ignored]


def _names(path: NodePath) -> tuple[str, ...]:
    return tuple(names.name_of(part) for part in path[1:].split("/") if part)
