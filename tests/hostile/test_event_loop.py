"""No step of the event loop takes longer than 50 ms, for any size that a store or a writer chooses.

Measured from inside, in processor time of the loop's own thread (`tests.support.loop_steps`), so that a busy machine makes no difference.
The cost of other threads is measured from outside (`test_stores.py`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support import hostile_stores as stores
from tests.support.length import share
from tests.support.loop_steps import stepped
from tests.support.mounting import Mounted, run, watchdog
from tests.support.small_stores import array_document, write

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(240)]

LONGEST_STEP = 0.05
GROUP = b'{"zarr_format":2}'
READ = 'timeout -s KILL 1 dd if="$1" of=/dev/null bs=1M count=1'


def large_documents(folder: Path) -> Path:
    """Write attributes of each form that may be large, and one set that is refused; return the store."""
    attributes = {
        "objects": '{"a": [' + ",".join(["{}"] * 400_000) + "]}",
        "numbers": json.dumps({"a": list(range(700_000))}),
        "members": json.dumps({f"k{number}": number for number in range(100_000)}),
        "lists": json.dumps({f"k{number}": ["x"] * 40 for number in range(10_000)}),
        "text": json.dumps({"a": "x" * 8_000_000}),
        "many": '{"a": [' + ",".join(["{}"] * 5_000_000) + "]}",
    }
    values = {f"{name}/.zattrs": text.encode() for name, text in attributes.items()}
    values |= {f"{name}/.zarray": array_document((4,), (4,), "<i4") for name in attributes}
    return write(folder / "s", {".zgroup": GROUP, **values})


def groups(folder: Path) -> Path:
    return write(folder / "s", {".zgroup": GROUP, **{f"g{number}/.zgroup": GROUP for number in range(share(8000))}})


def read_documents(mount: Mounted) -> None:
    for name in ("objects", "numbers", "members", "lists", "text"):
        assert json.loads((mount.path / f"chunks/{name}/.zattrs").read_bytes()) == json.loads(
            (mount.path / f"raw/{name}/.zattrs").read_bytes()
        )
        assert "attributes" in json.loads((mount.path / f"zarr3/{name}/zarr.json").read_bytes())
    assert "more than 2000000 values" in (mount.path / "chunks/many.unsupported.txt").read_text()


def write_documents(mount: Mounted) -> None:
    attributes = {"a": [[number, {}] for number in range(150_000)], "b": "x" * 1_000_000}
    (mount.path / "chunks/objects/.zattrs").write_text(json.dumps(attributes))
    assert json.loads((mount.path / "raw/objects/.zattrs").read_bytes()) == attributes


def read_one(path: str) -> Callable[[Mounted], None]:
    def ask(mount: Mounted) -> None:
        subprocess.run(["bash", "-c", READ, "bash", mount.path / path], check=False, capture_output=True)

    return ask


def list_views(mount: Mounted) -> None:
    for view in ("chunks", "zarr3", "npy", "raw"):
        run("ls", "-l", mount.path / view)


def write_sparse_values(mount: Mounted) -> None:
    """Write values that are loaded, copied and moved as a whole in memory, so that no step contains a natural wait."""
    value, temporary = mount.path / "raw/x", mount.path / "raw/y.__lock"
    for path in value, temporary:
        run("truncate", "-s", "1G", path)
        for place in (0, 2**29):
            run("dd", "if=/dev/zero", f"of={path}", "bs=1", "count=1", f"seek={place}", "conv=notrunc")
    value.rename(mount.path / "raw/z.__lock")
    assert (mount.store / "x").exists() is False


def large_chunks(folder: Path) -> Path:
    """Write an array of 32 MiB chunks; none is stored, and no step can skip them as zeros."""
    return write(folder / "s", {".zgroup": GROUP, "a/.zarray": array_document((4, 8192, 4096), (1, 8192, 4096), "|u1")})


SCATTERED = """
import mmap, os, random, sys
chance = random.Random(1)
file = os.open(sys.argv[1], os.O_RDWR)
nbytes = os.fstat(file).st_size
places = [chance.randrange(4096, nbytes) for _ in range(600)]
for place in places[:300]:
    os.pwrite(file, b"x", place)
with mmap.mmap(file, nbytes) as mapped:
    for place in places[300:]:
        mapped[place] = 120
    mapped.flush()
os.close(file)
"""


def write_scattered(mount: Mounted) -> None:
    run(sys.executable, "-c", SCATTERED, mount.path / "npy/a.npy")


def read_through(mount: Mounted) -> None:
    run("dd", f"if={mount.path}/npy/a.npy", "of=/dev/null", "bs=1M", "count=100")


def transposed_chunk(folder: Path) -> Path:
    """Write a chunk with as many bytes as are held in memory, in many short dimensions in the other order; return the store."""
    store = write(folder / "s", {"a/.zarray": array_document((2,) * 22, (2,) * 22, "|u1", order="F")})
    (store / "a" / ".".join("0" * 22)).write_bytes(bytes(range(256)) * 2**14)
    return store


def read_chunk(mount: Mounted) -> None:
    name = ".".join("0" * 22)
    expected = np.frombuffer((mount.path / f"raw/a/{name}").read_bytes(), "u1").reshape((2,) * 22, order="F").tobytes()
    assert (mount.path / f"chunks/a/{name}").read_bytes() == expected
    assert (mount.path / "npy/a.npy").read_bytes().endswith(expected)


@pytest.mark.parametrize(
    ("make", "ask"),
    [
        pytest.param(large_documents, read_documents, id="large documents are read", marks=pytest.mark.full_length),
        pytest.param(stores.consolidated3, lambda mount: os.listdir(mount.path / "zarr3"), id="a large copy in the root"),
        pytest.param(large_documents, write_documents, id="a large document is written", marks=pytest.mark.full_length),
        pytest.param(stores.one_element_chunks, read_one("npy/a.npy"), id="chunks of one element", marks=pytest.mark.full_length),
        pytest.param(stores.many_chunks, read_one("npy/row.npy"), id="2^40 chunks"),
        pytest.param(stores.many_dimensions, read_one("npy/d31.npy"), id="many dimensions", marks=pytest.mark.full_length),
        pytest.param(groups, list_views, id="many groups"),
        pytest.param(stores.one_element_chunks, write_sparse_values, id="sparse values are written", marks=pytest.mark.full_length),
        pytest.param(large_chunks, write_scattered, id="large chunks are written to here and there"),
        pytest.param(large_chunks, read_through, id="large chunks that are not stored are read"),
        pytest.param(transposed_chunk, read_chunk, id="a chunk in the other order is read"),
    ],
)
def test_every_step_is_short(make: Callable[[Path], Path], ask: Callable[[Mounted], None], tmp_path: Path) -> None:
    # Best of three: effects of processor caches and of other programs on a step are not measured.
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        with stepped(make(folder), cache_dir=str(folder / "cache"), timeout=20.0) as (mount, steps), watchdog(200):
            # No request waits during startup, so its steps do not count.
            steps.report()
            ask(mount)
        longest = steps.last["longest"]
        if max(longest.values()) < LONGEST_STEP:
            return
    pytest.fail(f"a step takes longer than {LONGEST_STEP} s: {longest}")


def test_readers_that_are_killed_leave_no_work(tmp_path: Path) -> None:
    store = stores.one_element_chunks(tmp_path)
    with stepped(store) as (mount, _), watchdog(100):
        readers = [subprocess.Popen(["dd", f"if={mount.path}/npy/a.npy", "of=/dev/null", "bs=1M", f"skip={n}"]) for n in range(4)]
        decoded = mount.stats()["store_operations"]
        while mount.stats()["store_operations"] == decoded:
            os.sched_yield()
        for reader in readers:
            reader.send_signal(signal.SIGKILL)
        for reader in readers:
            # About two seconds; without cancellation it would be two deadlines of a minute each.
            reader.wait(30)
