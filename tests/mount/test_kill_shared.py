"""kill -9 of the daemon while four programs change elements of the same chunks, through two views and through mappings.

No chunk is torn, no element is another writer's, no acknowledged write is lost, and no program is left waiting.
"""

from __future__ import annotations

import os
import random
import select
import signal
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support import forge
from tests.support.element_writer import CHUNK, CHUNKS, TOLD, WRITERS, is_by_fsync, value_of, version_of
from tests.support.length import FULL, MARKED
from tests.support.mounting import mounted

pytestmark = pytest.mark.fuse

KILLS = 200 if FULL else 20 if MARKED else 5
WAYS = ["chunks", "npy", "chunks-mapped", "npy-mapped"]
SCRIPT = Path(__file__).parents[1] / "support/element_writer.py"
SECONDS = 5.0


@contextmanager
def writing(mount: Path, way: str, writer: int, version: int) -> Iterator[forge.Process]:
    names = [f"chunks/a/{number}" for number in range(CHUNKS)] if way.startswith("chunks") else ["npy/a.npy"]
    arguments = [way, str(writer), str(version), *(str(mount / name) for name in names)]
    with open(os.devnull, "rb") as null, forge.Process(arguments, script=SCRIPT, stdin=null) as process:
        yield process


class Written:
    """The versions of each element: the last acknowledged one, and the latest one whose write began since."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, int] = defaultdict(int)
        self.begun: dict[int, int] = defaultdict(int)

    def learn(self, told: bytes, *, only_by_fsync: bool) -> int:
        """Return the number of acknowledgements; with ``only_by_fsync``, close(2) stores nothing yet and does not count."""
        count = 0
        for start in range(0, len(told) - len(told) % TOLD.size, TOLD.size):
            is_acknowledged, index, version = TOLD.unpack_from(told, start)
            if not is_acknowledged:
                self.begun[index] = version
            elif is_by_fsync(version) or not only_by_fsync:
                self.acknowledged[index] = version
                count += 1
        return count

    def compare(self, elements: np.ndarray) -> None:
        for index, value in enumerate(elements.tolist()):
            version = version_of(value, index)
            assert version >= self.acknowledged[index], f"{index} has lost what was acknowledged"
            assert version <= self.begun[index], f"{index} has what nobody wrote"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("sharded", [False, True], ids=["chunks", "shards"])
def test_kill_9_while_four_programs_change_the_same_chunks(tmp_path: Path, sharded: bool) -> None:
    moments = random.Random(11)
    store, written = tmp_path / "store", Written()
    group = zarr.create_group(store)
    shards = {"shards": (4 * CHUNK,)} if sharded else {}
    array = group.create_array("a", shape=(CHUNKS * CHUNK,), chunks=(CHUNK,), dtype="<i8", fill_value=0, **shards)
    array[:] = [value_of(index % WRITERS, 0) for index in range(CHUNKS * CHUNK)]
    total = 0
    for number in range(1, KILLS + 1):
        with mounted(store, ends_with=None) as mount, ExitStack() as stack:
            written.compare(np.load(mount.path / "npy/a.npy"))
            writers = [stack.enter_context(writing(mount.path, way, which, number << 20)) for which, way in enumerate(WAYS)]
            told = [process.stdout.fileno() for process in writers if process.stdout is not None]
            heard = [os.read(fd, TOLD.size) for fd in told]
            # The second report of any writer: one write is acknowledged.
            assert select.select(told, [], [], SECONDS)[0]
            killer = threading.Timer(moments.uniform(0.001, 0.150), os.kill, (mount.pid, signal.SIGKILL))
            killer.start()
            codes = [process.wait(SECONDS) for process in writers]
            errors = [process.stderr.read() for process in writers if process.stderr is not None]
            # Access to a page of a dead daemon is SIGBUS.
            assert set(codes) <= {0, -signal.SIGBUS} and not any(errors), (codes, errors, mount.log())
            acknowledged = sum(
                written.learn(first + _rest(fd), only_by_fsync=sharded and way == "chunks")
                for way, first, fd in zip(WAYS, heard, told, strict=True)
            )
            assert acknowledged
            total += acknowledged
        written.compare(zarr.open_array(store / "a", mode="r")[:])
    with mounted(store) as mount:
        written.compare(np.load(mount.path / "npy/a.npy"))
        # A listing removes the abandoned temporary files of a killed daemon.
        os.listdir(mount.path / "raw/a/c")
    left = {path.name for path in store.rglob("*") if path.is_file()}
    assert left == {"zarr.json", *map(str, range(CHUNKS // 4 if sharded else CHUNKS))}
    print(f"{KILLS} kills: {total} acknowledged")


def _rest(fd: int) -> bytes:
    return b"".join(iter(lambda: os.read(fd, 1 << 16), b""))
