"""Each group of the store as one read-only file of a format for several arrays, beside the folder of the groups in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from zarrfs import registry
from zarrfs.containers.base import GroupContainer
from zarrfs.hierarchy.node_changes import NodeChange
from zarrfs.keys import ROOT, NodePath, Prefix
from zarrfs.stores.change import Change
from zarrfs.vfs import names
from zarrfs.vfs.node import Directory
from zarrfs.views.base import Affected, NamedEntry, View, ViewContext, ViewPlugin, path_of
from zarrfs.views.group_directory import UNSUPPORTED_SUFFIX, entry_name_of
from zarrfs.views.group_file.file import MountedFormat
from zarrfs.views.group_file.folder import GroupFolder
from zarrfs.views.group_file.layouts import GroupLayouts
from zarrfs.views.group_file.times import ChangeTimes


class GroupFileView(View):
    """The view of one format."""

    def __init__(self, context: ViewContext, container: GroupContainer) -> None:
        self._context = context
        self._container = container
        self._times = ChangeTimes()
        self.mounted = MountedFormat(context, container, GroupLayouts(context.hierarchy, container), self._times)

    def root(self) -> Directory:
        return GroupFolder(self.mounted, ROOT)

    def affected(self, change: Change, nodes: Iterable[NodeChange]) -> Iterable[Affected]:
        above = path_of(change.target if isinstance(change.target, Prefix) else change.target.parent)
        if above is not None:
            # Chunks of an array that is not open are among no ``nodes``.
            for path in (above, *above.ancestors()):
                self._times.changed(path)
        # A change of a node concerns the files of all groups above it: each of them once.
        named: dict[NodePath, bool] = {}
        for node in nodes:
            gone = node.coords is None
            for path in (node.path, *node.path.ancestors()):
                if path in named and (named[path] or not gone):
                    # Those above are named, too.
                    break
                named[path] = gone
                self._times.changed(path)
                # Another layout is another file: open ones keep theirs, and the size that the kernel has.
                yield from (Affected(file, gone=gone, superseded=gone) for file in self._files(path))
            if gone and node.path != ROOT:
                yield Affected(self._folder(node.path), gone=True)

    def lost(self, prefix: Prefix) -> Iterable[NamedEntry]:
        return self.names_of(prefix)

    def names_of(self, prefix: Prefix) -> Iterator[NamedEntry]:
        if (path := path_of(prefix)) is not None:
            yield from ((file, False) for file in self._files(path))
            yield self._folder(path), True

    def _folder(self, path: NodePath) -> tuple[str, ...]:
        return tuple(names.name_of(part) for part in path[1:].split("/"))

    def _files(self, path: NodePath) -> Iterator[tuple[str, ...]]:
        """Yield the names of the file of a node, if it is a group, and of the file with the reason if it has none."""
        *above, name = self._folder(path)
        stem = self._context.store_name if path == ROOT else name
        yield (*above, entry_name_of(stem, self._container.suffix))
        yield (*above, entry_name_of(stem + self._container.suffix, UNSUPPORTED_SUFFIX))


def plugin_of(container: GroupContainer) -> ViewPlugin:
    """Return the view of a format."""
    return ViewPlugin(
        container.name,
        f"every group, with all below it, as one {container.suffix} file",
        lambda context: GroupFileView(context, container),
        example=container.example,
    )


PLUGIN = tuple(plugin_of(each) for each in registry.plugins("zarrfs.containers") if isinstance(each, GroupContainer))
