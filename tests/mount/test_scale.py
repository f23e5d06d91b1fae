"""Store operations and decoded chunks of each job, for three sizes of the store: the formulas of ``docs/SCALE.md``."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.mounting import Mounted, mounted, shell
from tests.support.small_stores import array_document, write

pytestmark = pytest.mark.fuse

CHUNK = 3 << 20
"""Bytes of a chunk: more than the kernel reads around a fault, so that a jump needs no other chunk."""
CHUNKS = (4, 16, 64)
ARRAYS = (4, 20, 100)
READERS = (1, 3, 9)


def chunks_store(folder: Path, count: int, *, stored: bool = True) -> Path:
    """A group with the array ``a`` of ``count`` chunks."""
    document = array_document((count * CHUNK,), (CHUNK,), "|u1", compressor={"id": "zlib", "level": 1})
    values = {f"a/{number}": zlib.compress(bytes([number + 1]) * CHUNK, 1) for number in range(count)} if stored else {}
    return write(folder, {".zgroup": b'{"zarr_format":2}', "a/.zarray": document, **values})


def arrays_store(folder: Path, count: int) -> Path:
    """A group of ``count`` arrays of one chunk."""
    values = {f"x{number}/.zarray": array_document((4,), (4,), "<i4") for number in range(count)}
    chunks = {f"x{number}/0": bytes(16) for number in range(count)}
    return write(folder, {".zgroup": b'{"zarr_format":2}', **values, **chunks})


def cost_of(mount: Mounted, job: Callable[[Path], object]) -> dict[str, int]:
    """Return the store operations of ``job``, and the numbers of chunks decoded and encoded."""
    before = mount.stats()
    with mount.counted() as cost:
        job(mount.path)
    after = mount.stats()
    return cost | {name: after[name] - before[name] for name in ("chunks_decoded", "chunks_encoded")}


def total(cost: dict[str, int]) -> int:
    """All operations of the store."""
    return sum(number for name, number in cost.items() if not name.startswith("chunks_"))


def reads(cost: dict[str, int]) -> int:
    return cost.get("get", 0) + cost.get("get_partial_values", 0)


def pread(path: Path, nbytes: int, offset: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), nbytes, offset)


@pytest.mark.parametrize(("build", "name"), [(chunks_store, "a"), (arrays_store, "x1")])
def test_the_cost_of_a_mount_and_a_lookup_does_not_depend_on_the_size(
    build: Callable[[Path, int], Path], name: str, tmp_path: Path
) -> None:
    paths = [f"npy/{name}.npy", f"chunks/{name}", f"chunks/{name}/0", f"zarr3/{name}", f"raw/{name}", "chunks/missing"]
    costs = []
    for size in CHUNKS:
        with mounted(build(tmp_path / f"{size}", size)) as mount:
            costs.append([total(mount.operations())])
            for path in paths:
                costs[-1].append(total(cost_of(mount, lambda root, path=path: os.path.lexists(root / path))))  # type: ignore[misc]
    assert costs[0] == costs[1] == costs[2]
    assert costs[0][0] <= 12 and max(costs[0][1:]) <= 6, costs[0]


@pytest.mark.parametrize("count", CHUNKS)
def test_chunks(count: int, tmp_path: Path) -> None:
    store = chunks_store(tmp_path / "store", count)
    with mounted(store) as mount:
        (mount.path / "npy/a.npy").stat()
        os.listdir(mount.path / "chunks")
        cost = cost_of(mount, lambda path: os.listdir(path / "chunks/a"))
        assert cost["list_dir"] <= 2 and total(cost) <= 4 and not cost["chunks_decoded"]
        last = 128 + count * CHUNK
        cost = cost_of(mount, lambda path: pread(path / "npy/a.npy", 100, last - 100))
        assert (reads(cost), cost["chunks_decoded"]) == (1, 1)
        cost = cost_of(mount, lambda path: pread(path / "chunks/a/1", 100, 100))
        assert (reads(cost), cost["chunks_decoded"]) == (1, 1)
        cost = cost_of(mount, lambda path: (path / "npy/a.npy").read_bytes())
        assert reads(cost) == cost["chunks_decoded"] and count - 2 <= reads(cost) <= count
        # The kernel may drop pages that are not in use at any time: one pass has to find all of them.
        again = [cost_of(mount, lambda path: (path / "npy/a.npy").read_bytes()) for _ in range(5)]
        assert any(total(cost) <= 2 and not cost["chunks_decoded"] for cost in again), again
        cost = cost_of(mount, lambda path: (path / "chunks/a/0").write_bytes(bytes(CHUNK)))
        assert (cost["set"], reads(cost), cost["chunks_encoded"]) == (1, 0, 1) and total(cost) <= 5
        whole = np.ones(count * CHUNK, "u1")
        np.save(tmp_path / "whole.npy", whole)
        cost = cost_of(mount, lambda path: shell('cp "$1" "$2"', tmp_path / "whole.npy", path / "npy/a.npy"))
        assert (cost["set"], cost["chunks_encoded"], reads(cost)) == (count, count, 0)
        assert total(cost) <= count + 12, cost


@pytest.mark.parametrize("count", CHUNKS)
def test_chunks_that_are_not_stored(count: int, tmp_path: Path) -> None:
    with mounted(chunks_store(tmp_path / "store", count, stored=False)) as mount:
        (mount.path / "npy/a.npy").stat()
        cost = cost_of(mount, lambda path: (path / "npy/a.npy").read_bytes())
        assert not cost["chunks_decoded"] and total(cost) <= 2 * count + 4


@pytest.mark.parametrize("count", ARRAYS)
def test_arrays(count: int, tmp_path: Path) -> None:
    with mounted(arrays_store(tmp_path / "store", count)) as mount:
        cost = cost_of(mount, lambda path: shell('ls -l "$1"', path / "npy"))
        assert cost["get_many"] <= count + 2 and cost["list_dir"] <= 2 and total(cost) <= 2 * count + 6, cost
        cost = cost_of(mount, lambda path: shell('ls -l "$1"', path / "zarr3"))
        assert total(cost) <= 4, "the documents are known"
        cost = cost_of(mount, lambda path: shell('find "$1"', path / "chunks"))
        assert cost["list_dir"] <= 2 * count + 2 and total(cost) <= 4 * count + 6, cost


@pytest.mark.parametrize("count", READERS)
def test_readers(count: int, tmp_path: Path) -> None:
    """However many programs read one array at the same time, its chunks are read and decoded once, but for some at which they meet."""
    with mounted(chunks_store(tmp_path / "store", 8)) as mount:
        (mount.path / "npy/a.npy").stat()
        script = 'for _ in $(seq "$2"); do cat "$1" >/dev/null & done; wait'
        cost = cost_of(mount, lambda path: shell(script, path / "npy/a.npy", str(count)))
        assert reads(cost) == cost["chunks_decoded"] and 8 <= reads(cost) <= 12
