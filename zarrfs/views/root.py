"""The root of a mount: a folder for each view and README.txt; and what is in ``.zarrfs/``, which is looked up there but not listed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from zarrfs.printable import printable
from zarrfs.vfs.generated import GeneratedFile, Make, text
from zarrfs.vfs.node import Attributes, Directory, Entry, Node, no_such_entry

README = "README.txt"
CONTROL = ".zarrfs"


class MountRoot(Directory):
    """The folders of the chosen views. ``about``: one line for each."""

    def __init__(self, views: Mapping[str, Directory], about: Mapping[str, str], mounted_ns: int) -> None:
        self._views = views
        self._readme = _readme(about)
        self._mounted_ns = mounted_ns

    async def attributes(self) -> Attributes:
        return Attributes(True, mtime_ns=self._mounted_ns, writable=False)

    async def lookup(self, name: str) -> Node:
        if name in self._views:
            return self._views[name]
        if name == README:
            return text(README, self._readme, mtime_ns=self._mounted_ns)
        raise no_such_entry(name)

    async def entries(self) -> AsyncIterator[Entry]:
        for name, view in self._views.items():
            attributes = await view.attributes()
            yield name, True, 0, attributes.mtime_ns, attributes.writable
        yield README, False, len(self._readme), self._mounted_ns, False


class ControlDirectory(Directory):
    """``.zarrfs/``: files made of what the daemon knows of itself."""

    def __init__(self, files: Mapping[str, Make]) -> None:
        self._files = files

    async def attributes(self) -> Attributes:
        return Attributes(True, writable=False)

    async def lookup(self, name: str) -> Node:
        if name not in self._files:
            raise no_such_entry(name)
        return GeneratedFile(f"{CONTROL}/{name}", self._files[name], direct=True)

    async def entries(self) -> AsyncIterator[Entry]:
        for name, make in self._files.items():
            yield name, False, len(await make()), None, False


def _readme(about: Mapping[str, str]) -> bytes:
    lines = [
        "This folder is a Zarr store, mounted by zarrfs. Nothing is copied: files are made from the store when they are read.",
        "",
    ]
    lines += [f"  {name + '/':<10}{line}" for name, line in about.items()]
    lines += ["", "Try, from here:", ""]
    commands = {
        "raw": ("ls -lR raw", "the keys of the store"),
        "chunks": ("find chunks -name .zarray | head", "which arrays there are"),
        "zarr3": ("python3 -c 'import zarr; print(zarr.open(\"zarr3\").tree())'", "the hierarchy, with any reader of Zarr v3"),
        "npy": ('python3 -c \'import numpy; print(numpy.load("npy/NAME.npy", mmap_mode="r").shape)\'', "an array, without Zarr"),
    }
    lines += [f"  {command}\n      {why}" for name, (command, why) in commands.items() if name in about]
    if "chunks" in about:
        lines += [
            "",
            "In chunks/, chunks that are not stored are listed where .zarray does not say what they read as, up to 65,536 of an array.",
            "Where there are more, .zattrs says it (zarrfs: missing_chunks_read_as), and each of them can be read by its name.",
        ]
    lines += ["", "Counters of this mount: cat .zarrfs/stats.json", "Unmount: zarrfs umount MOUNTPOINT", ""]
    return "\n".join(map(printable, "\n".join(lines).split("\n"))).encode()
