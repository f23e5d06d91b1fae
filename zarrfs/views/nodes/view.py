"""A view of a mount that shows each node as a folder, whatever its form."""

from __future__ import annotations

from collections.abc import Iterable

from zarrfs.hierarchy.node_changes import NodeChange
from zarrfs.keys import ROOT
from zarrfs.stores.base import Change
from zarrfs.vfs import names
from zarrfs.vfs.node import Directory
from zarrfs.views.base import Affected, View
from zarrfs.views.nodes.folder import NodeFolder
from zarrfs.views.nodes.view_format import ViewFormat


class NodeView(View):
    """The view in the form ``form``."""

    def __init__(self, form: ViewFormat) -> None:
        self._form = form

    def root(self) -> Directory:
        return NodeFolder(self._form, ROOT)

    def affected(self, change: Change, nodes: Iterable[NodeChange]) -> Iterable[Affected]:
        form = self._form
        forgotten = None
        for node in nodes:
            folder = tuple(names.name_of(part) for part in node.path[1:].split("/") if part)
            if node.coords is not None:
                keys = form.known_keys(node.path)
                if keys is None:
                    # Nobody has looked at the array here.
                    continue
                key = keys.encode(node.coords)
                # What was a temporary file until now has to be looked up anew.
                gone = change.kind in ("erase", "unknown") or form.ident(node.path, key) in form.state.became_chunks
                yield Affected((*folder, *key.split("/")), gone=gone, content=change.kind != "times")
            else:
                if change.is_prefix and change.kind == "erase" and node.path.prefix.startswith(change.place):
                    ident = form.ident(node.path, "")
                    if forgotten is None or not ident.startswith(forgotten):
                        form.state.forget_below(ident)
                        forgotten = ident
                yield Affected(folder, gone=True)
                for document in form.documents:
                    yield Affected((*folder, document), gone=True, content=change.kind != "times")

    def left(self) -> Iterable[str]:
        # What is copied in of an ignored document (a consolidated copy) says nothing that its nodes do not say.
        return [
            each
            for each in self._form.context.temporaries.left()
            if each.startswith(f"{self._form.view}/") and each.rpartition("/")[2] not in self._form.ignored
        ]
