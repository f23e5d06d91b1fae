"""Node benchmark: a store of many small arrays: its listings, ``zarrfs info``, the unmount and the memory afterwards.

    python benchmarks/nodes.py [--repetitions 3] [--arrays 10000] [--directory DIR]

Each command runs in a fresh mount; the unmount and the memory are those of one mount in which all of them ran. The peer is the same
command on the store's own folder, in the page cache for both. Prints minimum and median, the ratio of the minima, and the aim for
10,000 arrays.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from common import median, mounted, resident, scratch, seconds, shell, table

# Command in the mount, its equivalent in the store's folder, and the aim in seconds.
COMMANDS = {
    "find chunks": ("find {}/chunks", "find {}", 4.0),
    "ls zarr3": ("ls {}/zarr3", "ls {}", 1.5),
    "ls chunks": ("ls {}/chunks", "ls {}", 1.5),
    "ls -l npy": ("ls -l {}/npy", "ls -l {}", 0.7),
}
INFO_AIM, FIRST_LINE_AIM, UMOUNT_AIM, MEMORY_AIM = 3.0, 0.3, 1.0, 120
MIB = 1 << 20
DOCUMENTS = ("zarr.json", ".zarray", ".zattrs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3, help="runs of each measurement")
    parser.add_argument("--arrays", type=int, default=10_000, help="number of arrays")
    parser.add_argument("--formats", type=int, nargs="*", default=[3, 2], help="versions of Zarr")
    parser.add_argument("--directory", default=None, help="folder for the stores; default: the temporary folder")
    asked = parser.parse_args()
    with scratch(asked.directory) as folder:
        for zarr_format in asked.formats:
            store = folder / f"v{zarr_format}.zarr"
            create(store, zarr_format, asked.arrays)
            measure(store, f"{asked.arrays} arrays of Zarr v{zarr_format}", asked.repetitions)
            shutil.rmtree(store)


def create(store: Path, zarr_format: Any, count: int) -> None:
    """Create a group of ``count`` arrays of two chunks, with different shapes and attributes."""
    group = zarr.create_group(store, zarr_format=zarr_format)
    first = group.create_array("a", shape=(20,), chunks=(10,), dtype="i4", attributes={"units": "m", "long_name": ""})
    first[:] = np.arange(20)
    files = {path.relative_to(store / "a"): path.read_bytes() for path in (store / "a").rglob("*") if path.is_file()}
    shutil.rmtree(store / "a")
    for index in range(count):
        for path, data in files.items():
            target = store / f"array{index:06d}" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(document(data, index) if path.name in DOCUMENTS else data)


def document(data: bytes, index: int) -> bytes:
    """Return the document of the array ``index``, changed from that of the first."""
    members = json.loads(data)
    attributes = members if "long_name" in members else members.get("attributes", {})
    if attributes:
        attributes["long_name"] = f"array number {index}"
    if "shape" in members:
        members["shape"] = [11 + index % 10]
    return json.dumps(members, indent=2).encode()


def measure(store: Path, title: str, repetitions: int) -> None:
    """Print the table of one store."""
    times: dict[str, list[float]] = {}
    peers: dict[str, list[float]] = {}
    memory: list[int] = []
    for _ in range(repetitions):
        for name, (ours, theirs, _) in COMMANDS.items():
            peers.setdefault(name, []).append(seconds(shell(theirs.format(store))))
            with mounted(store) as mountpoint:
                times.setdefault(name, []).append(seconds(shell(ours.format(mountpoint))))
        first, whole = info(store)
        times.setdefault("info", []).append(whole)
        times.setdefault("first line", []).append(first)
        with ExitStack() as stack:
            mountpoint = stack.enter_context(mounted(store))
            for ours, _, _ in COMMANDS.values():
                shell(ours.format(mountpoint))()
            memory.append(resident(mountpoint))
            times.setdefault("umount", []).append(seconds(stack.close))
    rows = [row(name, times[name], aim, peers[name]) for name, (_, _, aim) in COMMANDS.items()]
    rows += [
        row("zarrfs info", times["info"], INFO_AIM),
        row("zarrfs info: first line", times["first line"], FIRST_LINE_AIM),
        row("zarrfs umount, after all", times["umount"], UMOUNT_AIM),
        ["memory, after all (MiB)", f"{min(memory) // MIB}", f"{median(memory) / MIB:.0f}", "", "", f"{MEMORY_AIM}"],
    ]
    table(f"{title} (seconds, {repetitions} runs)", ["job", "min", "median", "folder", "/folder", "to reach"], rows)


def row(name: str, ours: Sequence[float], aim: float, theirs: Sequence[float] = ()) -> list[str]:
    """Return a row of the table; ``theirs``: times of the peer."""
    peer = [f"{min(theirs):.3f}", f"{min(ours) / min(theirs):.1f}"] if theirs else ["", ""]
    return [name, f"{min(ours):.3f}", f"{median(ours):.3f}", *peer, f"{aim}"]


def info(store: Path) -> tuple[float, float]:
    """Return the seconds until ``zarrfs info`` prints its first node, and until it ends."""
    first: list[float] = []

    def run() -> None:
        with subprocess.Popen([sys.executable, "-m", "zarrfs", "info", str(store)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            # The first line is the store's name, the second its root.
            first.append(seconds(lambda: list(islice(process.stdout, 2))))
            deque(process.stdout, maxlen=0)

    whole = seconds(run)
    return first[0], whole


if __name__ == "__main__":
    main()
