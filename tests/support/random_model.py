"""Several threads do at random what programs do, in all views and behind the mount, over arrays whose elements say whose they are.

Each array has a life: a number of its own, and a length that no other has. Each element is (life, index, number of the write). Whoever
writes learns from the elements that the open file gives which life he writes to. So of every element that is read anywhere, at any time,
it is known whether a legal order of what was done could have put it there:

* its life is that of all elements of its array, and its index is where it lies: no bytes of another array, no fill values, no mixtures;
* it is of a write after whose end no other write of that element was begun and acknowledged.

The store lies in a folder. What is done behind the mount moves, removes and replaces whole arrays, as other programs may at any time;
they do not write elements, which nothing keeps apart from what the mount writes.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zarr

CHUNK, SHARD, SHORTEST = 16, 64, 64
NAMES = ("a", "b", "g/a", "g/b")

Elements = np.ndarray[Any, np.dtype[np.int64]]

# What a program may be told at any time when others move, remove and replace arrays. EIO: the documents are not there, or not yet; EFBIG,
# EINVAL, EPERM: of two that write one `.npy`, one has truncated it, and the other one's close made it what it is now.
EXPECTED = {
    errno.ENOENT,
    errno.ESTALE,
    errno.EEXIST,
    errno.EIO,
    errno.ENOTEMPTY,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.EXDEV,
    errno.EBUSY,
    errno.EFBIG,
    errno.EINVAL,
    errno.EPERM,
}


class Illegal(AssertionError):
    """Something is where no order could have put it."""


@dataclass
class Write:
    """``values``: the numbers that it put at indices. From ``begin`` to ``end`` (None: it has not ended) it may have taken effect."""

    values: Mapping[int, int]
    begin: int
    end: int | None = None
    acknowledged: bool = False


@dataclass
class Life:
    """An array, wherever it is."""

    number: int
    writes: list[Write] = field(default_factory=list)
    count: int = 0

    @property
    def length(self) -> int:
        return SHORTEST + self.number

    @property
    def fill(self) -> int:
        """Of no other: where the shape alone is another, it is the same array, resized."""
        return -self.number

    def first(self) -> Elements:
        """What it is made of."""
        return self.values(dict.fromkeys(range(self.length), 0))

    def values(self, numbers: Mapping[int, int]) -> Elements:
        """Elements of it."""
        return np.array([self.number << 40 | index << 20 | number for index, number in numbers.items()], "<i8")


def split(elements: Elements) -> tuple[set[int], list[int], list[int]]:
    """Lives, indices and numbers of writes."""
    return set((elements >> 40).tolist()), ((elements >> 20) & 0xFFFFF).tolist(), (elements & 0xFFFFF).tolist()


class Model:
    """What was done, and what may be read by that."""

    def __init__(self, store: Path, mount: Path, aside: Path, seed: int) -> None:
        self.store, self.mount, self.aside, self.seed = store, mount, aside, seed
        self._lock = threading.Lock()
        self._clock = itertools.count(1)
        self._lives: dict[int, Life] = {}
        self._numbers = itertools.count(1)
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.illegal: list[str] = []
        self.demands_news = False
        """Whether what is acknowledged has to be seen in all views at once, and not only at the end."""
        self.ended = 1 << 62
        self._taken_along = 0
        """When something was last renamed behind the mount: what waits for its shard then follows, and is not there at once."""

    # --- what is known --------------------------------------------------------------------------------------------------------

    def new_life(self) -> Life:
        with self._lock:
            life = Life(next(self._numbers))
            self._lives[life.number] = life
            life.writes.append(Write(dict.fromkeys(range(life.length), 0), begin=next(self._clock), acknowledged=True))
            life.writes[0].end = next(self._clock)
        return life

    @contextmanager
    def writing(self, life: Life, indices: list[int], besides: Mapping[int, int] | None = None) -> Iterator[Elements]:
        """Around a write of these elements (and of those that it puts back as they were read) from its first byte to its close."""
        with self._lock:
            life.count += 1
            values = dict(besides or {}) | dict.fromkeys(indices, life.count)
            write = Write(values, begin=next(self._clock))
            life.writes.append(write)
        try:
            yield life.values({index: values[index] for index in sorted(values)})
        except OSError:
            raise
        else:
            write.acknowledged = True
        finally:
            with self._lock:
                write.end = next(self._clock)

    def life_of(self, elements: Elements, first: int, what: str, asked: int) -> Life:
        """The life that elements from index ``first`` on are of, as they were read after the time ``asked``. Raises `Illegal`."""
        lives, indices, numbers = split(elements)
        if len(lives) != 1 or not lives <= self._lives.keys():
            raise Illegal(f"{what}: {len(elements)} elements of {sorted(lives)}: {elements.tolist()[:8]}...")
        life = self._lives[lives.pop()]
        if indices != list(range(first, first + len(elements))):
            raise Illegal(f"{what}: elements of life {life.number} lie elsewhere than they belong: {indices}")
        with self._lock:
            for index, number in zip(indices, numbers, strict=True):
                self._demand_legal(life, index, number, what, asked)
        return life

    def _demand_legal(self, life: Life, index: int, number: int, what: str, asked: int) -> None:
        ends = [write.end or 1 << 62 for write in life.writes if write.values.get(index) == number]
        if not ends:
            raise Illegal(f"{what}: element {index} of life {life.number} has {number}, which nobody wrote")
        if not self.demands_news and asked < self.ended:
            return
        if any(
            (write.end or 1 << 62) > asked and index // CHUNK in {each // CHUNK for each in write.values} for write in life.writes
        ):
            # Somebody has this chunk open with changes: who reads the same file sees what he began with.
            return
        later = [
            write
            for write in life.writes
            if write.acknowledged
            and index in write.values
            and write.begin > max(max(ends), self._taken_along)
            and (write.end or 1 << 62) < asked
        ]
        if later:
            raise Illegal(
                f"{what}: element {index} of life {life.number} has {number}, of a write that ended at {max(ends)}; "
                f"acknowledged since: {[(write.values[index], write.begin, write.end) for write in later]}; now {asked}"
            )

    def now(self) -> int:
        with self._lock:
            return next(self._clock)

    # --- what is done ---------------------------------------------------------------------------------------------------------

    def run(self, seconds: float, threads: int) -> None:
        """Do things for so long; raises `Illegal` with all that was found."""
        until = time.monotonic() + seconds
        workers = [threading.Thread(target=self._work, args=(number, until), daemon=True) for number in range(threads)]
        for each in workers:
            each.start()
        for each in workers:
            each.join()
        self.demand_all_legal()

    def demand_all_legal(self) -> None:
        """Raise `Illegal` with all that was found."""
        if self.illegal:
            raise Illegal(f"seed {self.seed}: " + "\n".join(self.illegal[:5]))

    def _work(self, number: int, until: float) -> None:
        chance = random.Random(f"{self.seed}-{number}")
        actions: list[Callable[[random.Random, str], None]] = [
            *[self._write_npy] * 4,
            *[self._write_chunk] * 6,
            *[self._write_encoded] * 2,
            *[self._read_npy] * 3,
            *[self._read_chunk] * 3,
            self._save,
            self._save,
            self._rename,
            self._remove,
            self._rename_behind,
            self._make_behind,
            self._make_behind,
            self._remove_behind,
        ]
        while time.monotonic() < until and not self.illegal:
            action, name = chance.choice(actions), chance.choice(NAMES)
            try:
                action(chance, name)
                self.done[action.__name__] += 1
            except OSError as error:
                if error.errno not in EXPECTED:
                    self.illegal.append(f"{action.__name__} of {name}: {error!r}")
                self.refused[f"{action.__name__} {errno.errorcode.get(error.errno or 0)}"] += 1
            except Illegal as error:
                self.illegal.append(f"{action.__name__} of {name}: {error}")
            except Exception as error:  # noqa: BLE001 (a thread has nobody else to tell)
                self.illegal.append(f"{action.__name__} of {name}: {error!r}")

    def _read_npy(self, chance: random.Random, name: str) -> None:
        asked = self.now()
        with opened(self.mount / f"npy/{name}.npy", os.O_RDONLY) as fd:
            data = read_all(fd, chance.choice((1 << 20, 200)))
        self._npy(data, f"npy/{name}.npy", asked)

    def _npy(self, data: bytes, what: str, asked: int) -> tuple[Life, Elements, int]:
        try:
            elements = np.load(io.BytesIO(data))
        except (ValueError, EOFError) as error:
            # Somebody has truncated it, and has not written it yet.
            raise OSError(errno.ESTALE, f"{what} is being written") from error
        life = self.life_of(elements, 0, what, asked)
        if len(elements) != life.length:
            raise Illegal(f"{what}: {len(elements)} elements of life {life.number}")
        return life, elements, len(data) - elements.nbytes

    def _write_npy(self, chance: random.Random, name: str) -> None:
        asked = self.now()
        with opened(self.mount / f"npy/{name}.npy", os.O_RDWR) as fd:
            life, _, header = self._npy(read_all(fd, 1 << 20), f"npy/{name}.npy", asked)
            start = chance.randrange(life.length)
            indices = list(range(start, min(life.length, start + chance.choice((1, 3, CHUNK, 40)))))
            with self.writing(life, indices) as values:
                os.pwrite(fd, values.tobytes(), header + 8 * start)
                if chance.random() < 0.5:
                    os.fsync(fd)
                else:
                    flush(fd)

    def _chunk(self, chance: random.Random, name: str, view: str) -> tuple[Path, int]:
        folder = self.mount / view / name / ("c" if view == "zarr3" else "")
        numbers = [each for each in os.listdir(folder) if each.isdecimal()]
        if not numbers:
            raise FileNotFoundError(errno.ENOENT, "no chunks")
        number = chance.choice(numbers)
        return folder / number, int(number) * CHUNK

    def _read_chunk(self, chance: random.Random, name: str) -> None:
        path, first = self._chunk(chance, name, chance.choice(("chunks", "zarr3")))
        asked = self.now()
        with opened(path, os.O_RDONLY) as fd:
            data = read_all(fd, 1 << 20)
        self._elements(data, first, str(path), asked)

    def _elements(self, data: bytes, first: int, what: str, asked: int) -> tuple[Life, Elements]:
        """Those inside the array: behind the end of it a chunk is padded."""
        elements = np.frombuffer(data, "<i8")
        if len(elements) != CHUNK:
            raise Illegal(f"{what}: {len(data)} bytes")
        number = int(elements[0]) >> 40
        inside = max(0, min(CHUNK, SHORTEST + number - first))
        return self.life_of(elements[:inside], first, what, asked), elements[:inside]

    def _write_chunk(self, chance: random.Random, name: str) -> None:
        path, first = self._chunk(chance, name, "chunks")
        asked = self.now()
        with opened(path, os.O_RDWR) as fd:
            life, elements = self._elements(read_all(fd, 1 << 20), first, str(path), asked)
            start = chance.randrange(len(elements))
            stop = min(len(elements), start + chance.choice((1, 2, CHUNK)))
            with self.writing(life, [first + each for each in range(start, stop)]) as values:
                os.pwrite(fd, values.tobytes(), 8 * start)
                if chance.random() < 0.5:
                    os.fsync(fd)
                else:
                    flush(fd)

    def _write_encoded(self, chance: random.Random, name: str) -> None:
        """The whole chunk, as a program writes it that has read and decoded it before: the last one to close wins."""
        path, first = self._chunk(chance, name, "zarr3")
        asked = self.now()
        with opened(path, os.O_RDWR) as fd:
            data = read_all(fd, 1 << 20)
            life, elements = self._elements(data, first, str(path), asked)
            besides = dict(zip(range(first, first + len(elements)), split(elements)[2], strict=True))
            with self.writing(life, [first + chance.randrange(len(elements))], besides) as values:
                os.pwrite(fd, values.tobytes() + data[values.nbytes :], 0)
                flush(fd)

    def _save(self, chance: random.Random, name: str) -> None:
        life = self.new_life()
        data = io.BytesIO()
        np.save(data, life.first())
        path = self.mount / f"npy/{name}.npy"
        # Under another name first, or where there is none: who reads a file that is truncated and written sees parts, as anywhere.
        written = path.with_name(f".{life.number}.tmp") if chance.random() < 0.7 else path
        with opened(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
            os.write(fd, data.getvalue())
            flush(fd)
        if written != path:
            os.rename(written, path)

    def _rename(self, chance: random.Random, name: str) -> None:
        view, new = chance.choice(("npy", "chunks", "zarr3", "raw")), chance.choice(NAMES)
        suffix = ".npy" if view == "npy" else ""
        os.rename(self.mount / view / f"{name}{suffix}", self.mount / view / f"{new}{suffix}")

    def _remove(self, chance: random.Random, name: str) -> None:
        # `rm -r` in another view removes chunk by chunk: between, it is right that they are missing.
        os.unlink(self.mount / f"npy/{name}.npy")

    def _rename_behind(self, chance: random.Random, name: str) -> None:
        with self._renaming():
            os.rename(self.store / name, self.store / chance.choice(NAMES))

    @contextmanager
    def _renaming(self) -> Iterator[None]:
        self._taken_along = 1 << 62
        try:
            yield
        finally:
            self._taken_along = self.now()

    def _make_behind(self, chance: random.Random, name: str) -> None:
        """In the place of what is there, as `mv` does it."""
        life = self.new_life()
        made = self.aside / str(life.number)
        more: dict[str, Any] = {"shards": (SHARD,)} if chance.random() < 0.5 else {}
        array = zarr.create_array(
            str(made),
            shape=(life.length,),
            chunks=(CHUNK,),
            dtype="<i8",
            compressors=None,
            fill_value=life.fill,
            zarr_format=3,
            **more,
        )
        array[:] = life.first()
        with suppress(OSError), self._renaming():
            os.rename(self.store / name, self.aside / f"old-{life.number}")
        os.rename(made, self.store / name)

    def _remove_behind(self, chance: random.Random, name: str) -> None:
        gone = self.aside / f"gone-{self.now()}"
        os.rename(self.store / name, gone)
        shutil.rmtree(gone)

    # --- at the end -----------------------------------------------------------------------------------------------------------

    def check_store(self) -> int:
        """Look at all arrays in the store, and those that were taken out of it, with another program; how many elements these are."""
        count, asked = 0, self.now()
        self._taken_along, self.ended = 0, asked
        for document in [*self.store.rglob("zarr.json"), *self.aside.rglob("zarr.json")]:
            with suppress(zarr.errors.NodeTypeValidationError, zarr.errors.ContainsGroupError):
                if b'"array"' not in document.read_bytes():
                    continue
                elements = zarr.open_array(str(document.parent), mode="r")[:]
                what = f"{document.parent} at the end"
                # What was taken out of the store is as it was then.
                life = self.life_of(elements, 0, what, asked if document.is_relative_to(self.store) else 0)
                if len(elements) != life.length:
                    raise Illegal(f"{what}: {len(elements)} elements of life {life.number}")
                count += len(elements)
        return count


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """close(2) tells its errors, where nothing else has failed."""
    fd = os.open(path, flags)
    try:
        yield fd
    except BaseException:
        with suppress(OSError):
            os.close(fd)
        raise
    os.close(fd)


def flush(fd: int) -> None:
    """What close(2) does: whether it was acknowledged."""
    os.close(os.dup(fd))


def read_all(fd: int, at_once: int) -> bytes:
    """All bytes of a file."""
    pieces, offset = [], 0
    while piece := os.pread(fd, at_once, offset):
        pieces.append(piece)
        offset += len(piece)
    return b"".join(pieces)
