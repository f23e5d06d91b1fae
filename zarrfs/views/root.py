"""The root of a mount: a folder for each view and README.txt; also ``.zarrfs/``, which lookups find and listings omit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from zarrfs.errors import NameInvalid, NotADirectory
from zarrfs.printable import printable
from zarrfs.vfs.generated import GeneratedFile, Make, text
from zarrfs.vfs.node import Attributes, Directory, Entry, VfsNode, no_such_entry
from zarrfs.views.base import ViewPlugin

README = "README.txt"
CONTROL = ".zarrfs"


class MountRoot(Directory):
    """The folders of the chosen views, by name; ``plugins`` are their view plug-ins.

    A folder that is removed is gone until it is made again: programs that write a hierarchy anew remove its folder first."""

    keeps_its_time = True

    def __init__(self, views: Mapping[str, Directory], plugins: Sequence[ViewPlugin], mounted_ns: int) -> None:
        self._views = views
        self._removed: set[str] = set()
        self._readme = _readme(plugins)
        self._mounted_ns = mounted_ns

    async def attributes(self) -> Attributes:
        return Attributes(True, mtime_ns=self._mounted_ns)

    async def lookup(self, name: str) -> VfsNode:
        if name in self._views and name not in self._removed:
            return self._views[name]
        if name == README:
            return text(README, self._readme, mtime_ns=self._mounted_ns)
        raise no_such_entry(name)

    async def entries(self) -> AsyncIterator[Entry]:
        for name, view in self._views.items():
            if name in self._removed:
                continue
            attributes = await view.attributes()
            yield name, True, 0, attributes.mtime_ns, attributes.writable
        yield README, False, len(self._readme), self._mounted_ns, False

    async def mkdir(self, name: str) -> Directory:
        if name not in self._removed:
            return await super().mkdir(name)
        self._removed.remove(name)
        return self._views[name]

    async def rmdir(self, name: str) -> None:
        view = await self.lookup(name)
        if not isinstance(view, Directory):
            raise NotADirectory(f"{name!r} is a file", key=name)
        await view.remove()
        self._removed.add(name)

    async def rename(self, name: str, new_directory: Directory, new_name: str, *, replace: bool = True) -> None:
        if new_directory is not self and isinstance(await self.lookup(name), Directory):
            # Every view has the whole store: on EXDEV, mv would copy what it creates by copying, until the path is too long.
            raise NameInvalid(f"{name!r} cannot be moved into itself, in another view", key=name)
        await super().rename(name, new_directory, new_name, replace=replace)

    async def sync(self) -> None:
        for view in self._views.values():
            await view.sync()


class ControlDirectory(Directory):
    """``.zarrfs/``: files generated from the daemon's own state."""

    def __init__(self, files: Mapping[str, Make]) -> None:
        self._files = files

    async def attributes(self) -> Attributes:
        return Attributes(True, writable=False)

    async def lookup(self, name: str) -> VfsNode:
        if name not in self._files:
            raise no_such_entry(name)
        return GeneratedFile(f"{CONTROL}/{name}", self._files[name], direct=True)

    async def entries(self) -> AsyncIterator[Entry]:
        for name, make in self._files.items():
            yield name, False, len(await make()), None, False


def _readme(plugins: Sequence[ViewPlugin]) -> bytes:
    lines = [
        "This folder is a Zarr store, mounted by zarrfs. Nothing is copied: files are generated from the store when they are read.",
        "",
    ]
    lines += [f"  {plugin.name + '/':<10}{plugin.about}" for plugin in plugins]
    lines += ["", "Try, from here:", ""]
    lines += [f"  {plugin.example[0]}\n      {plugin.example[1]}" for plugin in plugins if plugin.example is not None]
    for plugin in plugins:
        lines += ["", *plugin.notes] if plugin.notes else []
    lines += ["", "Counters of this mount: cat .zarrfs/stats.json", "Unmount: zarrfs umount MOUNTPOINT", ""]
    return "\n".join(map(printable, "\n".join(lines).split("\n"))).encode()
