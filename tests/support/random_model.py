"""Random operations by several threads, in all views and as external changes, over arrays whose elements identify their writes.

Each array has a life: a unique number. Each element is (life, index, number of the write). A writer learns the life from the elements
in the open file. For every element that is read anywhere, at any time, it is therefore decidable whether a legal order of the
operations explains it:

* its life is that of all elements of its array, and its index is its position: no bytes of another array, no mixtures;
* no other write of that element began and was acknowledged after the end of its own write;
* a fill value occurs only where the array once ended earlier, and it is that array's own.

The store is a folder. External changes move, remove and replace whole arrays, as other programs may at any time. They do not write
elements, since these could not be separated from the mount's own writes.
"""

from __future__ import annotations

import errno
import io
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import zarr

CHUNK, SHARD, SHORTEST = 16, 64, 64
_LAST = 60
"""Number of operations in the report of a finding."""

FILL, LENGTH = -1, -1
"""The number of a fill value, and the index under which the length of an array is written."""
NAMES = ("a", "b", "g/a", "g/b")

Elements = np.ndarray[Any, np.dtype[np.int64]]

# Errors that a program may get at any time while others move, remove and replace arrays. EIO: the documents are missing, or not there
# yet; EFBIG, EINVAL, EPERM: of two writers of one `.npy`, one has truncated it, and the close of the other has determined its content.
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
    """A value was read at a position where no legal order explains it."""


@dataclass
class Write:
    """A write; ``values`` are its numbers by index. It may take effect from ``begin`` to ``end`` (None: unfinished)."""

    values: Mapping[int, int]
    begin: int
    end: int | None = None
    acknowledged: bool = False

    @cached_property
    def chunks(self) -> frozenset[int]:
        """The chunks that it changed."""
        return frozenset(index // CHUNK for index in self.values)


@dataclass
class Life:
    """An array, independent of its path.

    ``is_marked``: its number is in its attributes; another one is never resized. (An array saved over it keeps them and its fill value,
    and is identified by its length.)
    """

    number: int
    is_marked: bool = False
    writes: list[Write] = field(default_factory=list)
    count: int = 0
    shortest: int = 0
    """The smallest length that it may have had: elements beyond it may be fill value, and may be dropped."""

    @property
    def first_length(self) -> int:
        """An even length that no other array has."""
        return SHORTEST + 2 * self.number

    def first(self) -> Elements:
        """Return the initial elements."""
        return self.values(dict.fromkeys(range(self.first_length), 0))

    def values(self, numbers: Mapping[int, int]) -> Elements:
        """Return elements of this life."""
        return np.array([self.number << 40 | index << 20 | number for index, number in numbers.items()], "<i8")


def lives(elements: Elements) -> set[int]:
    """Return the lives of elements. Fill values have none: an array has those of the array that it was saved over."""
    return {each >> 40 for each in elements.tolist() if each > 0}


class Model:
    """The history of operations, and the legal results of reads."""

    def __init__(self, store: Path, aside: Path, seed: int) -> None:
        self.store, self.aside, self.seed = store, aside, seed
        self.mount: Path
        self._lock = threading.Lock()
        self._editor = threading.Lock()
        """Held by an editor that changes a document in place: of two at once, one may leave the end of the other's text."""
        self._clock = itertools.count(1)
        self._lives: dict[int, Life] = {}
        self._numbers = itertools.count(1)
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.illegal: list[str] = []
        self._history: deque[str] = deque(maxlen=20_000)
        self._details: dict[int, str] = {}
        self.demands_news = False
        """True if acknowledged data has to be visible in all views at once, and not only at the end."""
        self.ended = 1 << 62
        self._taken_along = 0
        """Time of the last external rename: chunks queued for a shard then follow, and are visible later."""
        self._undisturbed: list[str] = []
        """Paths of arrays that `_rename_open` alone uses, each by one thread at a time."""

    # --- the model ------------------------------------------------------------------------------------------------------------

    def new_life(self, *, is_marked: bool = False) -> Life:
        with self._lock:
            life = Life(next(self._numbers), is_marked)
            life.shortest = life.first_length
            self._lives[life.number] = life
            values = dict.fromkeys(range(life.first_length), 0) | {LENGTH: life.first_length}
            life.writes.append(Write(values, begin=next(self._clock), acknowledged=True))
            life.writes[0].end = next(self._clock)
        return life

    @contextmanager
    def writing(self, life: Life, indices: list[int], besides: Mapping[int, int] | None = None) -> Iterator[Elements]:
        """Record a write of these elements (and of those written back unchanged) from its first byte to its close."""
        with self._lock:
            life.count += 1
            values = dict(besides or {}) | dict.fromkeys(indices, life.count)
            write = Write(values, begin=next(self._clock))
            life.writes.append(write)
        self._note("life", life.number, "write", life.count, "of", indices[0], "to", indices[-1], "at", write.begin)
        try:
            yield life.values({index: values[index] for index in sorted(values)})
        except OSError:
            raise
        else:
            write.acknowledged = True
        finally:
            with self._lock:
                write.end = next(self._clock)

    @contextmanager
    def resizing(self, life: Life, length: int, *, behind: bool) -> Iterator[None]:
        """Record a change of the length. With ``behind``, it is by another program and may be visible late."""
        with self._lock:
            life.shortest = min(life.shortest, length)
            write = Write({LENGTH: length}, begin=next(self._clock))
            life.writes.append(write)
        self._note("life", life.number, "length", length, "at", write.begin)
        try:
            yield
            write.acknowledged = not behind
        finally:
            with self._lock:
                write.end = next(self._clock)

    def life_of(self, elements: Elements, first: int, what: str, asked: int) -> tuple[Life, dict[int, int]]:
        """Return the life of elements from index ``first`` on, read after the time ``asked``, and their write numbers.

        Raises `Illegal`.
        """
        found = lives(elements)
        if len(found) != 1 or not found <= self._lives.keys():
            raise Illegal(f"{what}: {len(elements)} elements of {sorted(found)}: {elements.tolist()[:8]}...")
        life, numbers = self._lives[found.pop()], {}
        fills = {element for element in elements.tolist() if element <= 0}
        if len(fills) > 1 or (life.is_marked and not fills <= {-life.number}):
            raise Illegal(f"{what}: life {life.number} has the fill values {sorted(fills)}: {elements.tolist()[:8]}...")
        with self._lock:
            for index, element in enumerate(elements.tolist(), first):
                if element > 0 and (element >> 20) & 0xFFFFF != index:
                    raise Illegal(f"{what}: element {index} of life {life.number} lies elsewhere than it belongs: {element}")
                numbers[index] = element & 0xFFFFF if element > 0 else FILL
                self._demand_legal(life, index, numbers[index], what, asked)
        return life, numbers

    def _demand_legal(self, life: Life, index: int, number: int, what: str, asked: int) -> None:
        if number == FILL and index >= life.shortest:
            return
        ends = [write.end or 1 << 62 for write in life.writes if write.values.get(index) == number]
        if not ends:
            raise Illegal(f"{what}: element {index} of life {life.number} has {number}, which nobody wrote")
        if index >= life.shortest:
            return
        if not self.demands_news and asked < self.ended:
            return
        if any((write.end or 1 << 62) > asked and index // CHUNK in write.chunks for write in life.writes):
            # This chunk is open with changes: readers of the same file see the content with which the writer began.
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

    def _note(self, *details: object) -> None:
        """Record the current operation of this thread, for reports of findings."""
        self._details[threading.get_ident()] = " ".join(map(str, [self._details.get(threading.get_ident(), ""), *details]))

    def now(self) -> int:
        with self._lock:
            return next(self._clock)

    # --- the operations -------------------------------------------------------------------------------------------------------

    def add_undisturbed(self, count: int) -> None:
        """Create arrays that `_rename_open` alone uses, every second one sharded, before the store is mounted."""
        for number in range(count):
            name = f"undisturbed{number}"
            self._create(self.store / name, self.new_life(is_marked=True), is_sharded=number % 2 == 1)
            self._undisturbed.append(name)

    def run(self, mount: Path, seconds: float, threads: int) -> None:
        """Run random operations on ``mount`` for that long; raise `Illegal` with all findings."""
        self.mount = mount
        until = time.monotonic() + seconds
        workers = [threading.Thread(target=self._work, args=(number, until), daemon=True) for number in range(threads)]
        for each in workers:
            each.start()
        for each in workers:
            each.join()
        self.demand_all_legal()

    def demand_all_legal(self) -> None:
        """Raise `Illegal` with all findings."""
        if self.illegal:
            found = "\n".join(self.illegal[:5])
            raise Illegal(f"seed {self.seed}: {found}\n{self.history(found)}")

    def history(self, found: str = "") -> str:
        """Return the last operations, and those on the arrays in ``found``."""
        done = list(self._history)
        lives = [re.compile(rf"\b{life}\b") for life in dict.fromkeys(re.findall(r"life \d+", found))]
        theirs = [each for each in done[:-_LAST] if any(life.search(each) for life in lives)]
        return "\n".join(["what was done to these before:", *theirs, "what ended last:", *done[-_LAST:]])

    def _work(self, number: int, until: float) -> None:
        chance = random.Random(f"{self.seed}-{number}")
        actions: list[Callable[[random.Random, str], None]] = [
            *[self._write_npy] * 4,
            *[self._write_chunk] * 6,
            *[self._write_encoded] * 2,
            *[self._map_npy] * 2,
            *[self._read_npy] * 3,
            *[self._read_chunk] * 3,
            self._save,
            self._save,
            self._rename,
            *[self._rename_open] * 2,
            self._remove,
            self._rename_behind,
            self._make_behind,
            self._make_behind,
            self._remove_behind,
            self._resize,
            self._resize_behind,
        ]
        while time.monotonic() < until and not self.illegal:
            action, name = chance.choice(actions), chance.choice(NAMES)
            begun, outcome = self.now(), "0"
            try:
                action(chance, name)
                self.done[action.__name__] += 1
            except OSError as error:
                outcome = repr(error)
                if error.errno not in EXPECTED:
                    self.illegal.append(f"{action.__name__} of {name}: {error!r}")
                self.refused[f"{action.__name__} {errno.errorcode.get(error.errno or 0)}"] += 1
            except Illegal as error:
                outcome = "illegal"
                self.illegal.append(f"{action.__name__} of {name}: {error}")
            except Exception as error:  # noqa: BLE001 (a thread has nobody else to tell)
                self.illegal.append(f"{action.__name__} of {name}: {error!r}")
            finally:
                self._history.append(
                    f"{begun}-{self.now()} {action.__name__} {name}{self._details.pop(threading.get_ident(), '')}: {outcome}"
                )

    def _read_npy(self, chance: random.Random, name: str) -> None:
        asked = self.now()
        with opened(self.mount / f"npy/{name}.npy", os.O_RDONLY) as fd:
            data = read_all(fd, chance.choice((1 << 20, 200)))
        self._npy(data, f"npy/{name}.npy", asked)

    def _npy(self, data: bytes, what: str, asked: int) -> tuple[Life, Elements, int]:
        try:
            elements = np.load(io.BytesIO(data))
        except (ValueError, EOFError) as error:
            # Another thread has truncated it, and has not written it yet.
            raise OSError(errno.ESTALE, f"{what} is being written") from error
        life, _ = self.life_of(elements, 0, what, asked)
        self.demand_length(life, len(elements), what, asked)
        return life, elements, len(data) - elements.nbytes

    def demand_length(self, life: Life, length: int, what: str, asked: int) -> None:
        """Raise `Illegal` if an array cannot have this length now."""
        with self._lock:
            self._demand_legal(life, LENGTH, length, f"{what}, its length", asked)

    def _write_npy(self, chance: random.Random, name: str) -> None:
        asked = self.now()
        with opened(self.mount / f"npy/{name}.npy", os.O_RDWR) as fd:
            life, elements, header = self._npy(read_all(fd, 1 << 20), f"npy/{name}.npy", asked)
            start = chance.randrange(len(elements))
            indices = list(range(start, min(len(elements), start + chance.choice((1, 3, CHUNK, 40)))))
            with self.writing(life, indices) as values:
                os.pwrite(fd, values.tobytes(), header + 8 * start)
                published(fd, by_fsync=chance.random() < 0.5)

    def _map_npy(self, chance: random.Random, name: str) -> None:
        """Map a file in a process of its own: a signal ends it if its bytes no longer exist."""
        asked, path = self.now(), self.mount / f"npy/{name}.npy"
        with subprocess.Popen([sys.executable, "-S", "-c", MAPPER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as mapper:
            assert mapper.stdin is not None and mapper.stdout is not None
            size = int(mapper.stdout.readline() or -1)
            data = mapper.stdout.read(max(0, size))
            if size < 0 or len(data) < size:
                mapper.stdin.close()
                raise ended_with(mapper.wait(), path)
            life, elements, header = self._npy(data, f"npy/{name}.npy, mapped", asked)
            start = chance.randrange(len(elements))
            indices = list(range(start, min(len(elements), start + chance.choice((1, 3, CHUNK, 40)))))
            with self.writing(life, indices) as values:
                with suppress(BrokenPipeError):
                    mapper.stdin.write(b"%d %d\n" % (header + 8 * start, values.nbytes) + values.tobytes())
                    mapper.stdin.close()
                if mapper.wait():
                    raise ended_with(mapper.returncode, path)

    def _resize(self, chance: random.Random, name: str) -> None:
        """Change the shape as an editor changes a document, in place."""
        document = chance.choice(("chunks/{}/.zarray", "zarr3/{}/zarr.json", "raw/{}/zarr.json")).format(name)
        self._note(document)
        with self._editor, opened(self.mount / document, os.O_RDWR) as fd:

            def written(text: bytes) -> None:
                os.pwrite(fd, text, 0)
                os.ftruncate(fd, len(text))
                flush(fd)

            self._resize_by(chance, read_all(fd, 1 << 20), written, behind=False)

    def _resize_behind(self, chance: random.Random, name: str) -> None:
        """Change the shape in the array that was read, whatever is under its name now."""
        with opened(self.store / name, os.O_RDONLY | os.O_DIRECTORY) as folder:

            def written(text: bytes) -> None:
                Path(f"/proc/self/fd/{folder}/.zarr.json.new").write_bytes(text)
                os.rename(".zarr.json.new", "zarr.json", src_dir_fd=folder, dst_dir_fd=folder)

            self._resize_by(chance, Path(f"/proc/self/fd/{folder}/zarr.json").read_bytes(), written, behind=True)

    def _resize_by(self, chance: random.Random, text: bytes, write: Callable[[bytes], object], *, behind: bool) -> None:
        try:
            document = json.loads(text)
        except ValueError as error:
            raise OSError(errno.ESTALE, "somebody is writing it") from error
        if "shape" not in document:
            raise FileNotFoundError(errno.ENOENT, "no array: its folder is still, or again, there")
        (length,) = document["shape"]
        # A .zarray has no attributes: the length identifies an array that was never resized.
        number = document.get("attributes", {}).get("life", (length - SHORTEST) / 2)
        life = self._lives.get(number)
        if life is None or not life.is_marked or (length % 2 == 0 and length != life.first_length):
            raise FileNotFoundError(errno.ENOENT, "no array that can be resized")
        # Odd: an array that is saved over one of the same shape may take its place chunk by chunk.
        length = chance.randrange(SHORTEST + 1, life.first_length + 3 * CHUNK, 2)
        with self.resizing(life, length, behind=behind):
            write(json.dumps(document | {"shape": [length]}).encode())

    def _chunk(self, chance: random.Random, name: str, view: str) -> tuple[Path, int]:
        folder = self.mount / view / name / ("c" if view == "zarr3" else "")
        self._note(folder.relative_to(self.mount))
        numbers = [each for each in os.listdir(folder) if each.isdecimal()]
        if not numbers:
            raise FileNotFoundError(errno.ENOENT, "no chunks")
        number = chance.choice(numbers)
        self._note(number)
        return folder / number, int(number) * CHUNK

    def _read_chunk(self, chance: random.Random, name: str) -> None:
        path, first = self._chunk(chance, name, chance.choice(("chunks", "zarr3")))
        asked = self.now()
        with opened(path, os.O_RDONLY) as fd:
            data = read_all(fd, 1 << 20)
        self._elements(data, first, str(path), asked)

    def _elements(self, data: bytes, first: int, what: str, asked: int) -> tuple[Life, dict[int, int]]:
        """Return the elements that are inside the array in any case; beyond its end a chunk is padded."""
        if len(data) != 8 * CHUNK:
            raise Illegal(f"{what}: {len(data)} bytes, {data[:40]!r}")
        elements = np.frombuffer(data, "<i8")
        if first >= SHORTEST and not lives(elements):
            raise FileNotFoundError(errno.ENOENT, "a missing chunk, of an array that grew")
        life, numbers = self.life_of(elements, first, what, asked)
        return life, {index: number for index, number in numbers.items() if index < life.shortest}

    def _write_chunk(self, chance: random.Random, name: str) -> None:
        path, first = self._chunk(chance, name, "chunks")
        asked = self.now()
        with opened(path, os.O_RDWR) as fd:
            life, elements = self._elements(read_all(fd, 1 << 20), first, str(path), asked)
            if not elements:
                raise FileNotFoundError(errno.ENOENT, "nothing of it is inside")
            start = chance.randrange(len(elements))
            stop = min(len(elements), start + chance.choice((1, 2, CHUNK)))
            with self.writing(life, [first + each for each in range(start, stop)]) as values:
                os.pwrite(fd, values.tobytes(), 8 * start)
                published(fd, by_fsync=chance.random() < 0.5)

    def _write_encoded(self, chance: random.Random, name: str) -> None:
        """Write the whole chunk, as a program that has read and decoded it before: the last close wins."""
        path, first = self._chunk(chance, name, "zarr3")
        asked = self.now()
        with opened(path, os.O_RDWR) as fd:
            data = read_all(fd, 1 << 20)
            life, elements = self._elements(data, first, str(path), asked)
            if not elements:
                raise FileNotFoundError(errno.ENOENT, "nothing of it is inside")
            with self.writing(life, [first + chance.randrange(len(elements))], elements) as values:
                os.pwrite(fd, values.tobytes() + data[values.nbytes :], 0)
                flush(fd)

    def _save(self, chance: random.Random, name: str) -> None:
        life = self.new_life()
        self._note("life", life.number)
        data = io.BytesIO()
        np.save(data, life.first())
        path = self.mount / f"npy/{name}.npy"
        # A temporary file renamed over it, or a new file: readers of a file truncated and rewritten in place see parts, as on any system.
        written = path.with_name(f".{life.number}.tmp") if chance.random() < 0.7 else path
        with opened(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
            os.write(fd, data.getvalue())
            flush(fd)
        if written != path:
            os.rename(written, path)

    def _rename(self, chance: random.Random, name: str) -> None:
        view, new = chance.choice(("npy", "chunks", "zarr3", "raw")), chance.choice(NAMES)
        suffix = ".npy" if view == "npy" else ""
        self._note(view, "to", new)
        os.rename(self.mount / view / f"{name}{suffix}", self.mount / view / f"{new}{suffix}")

    def _rename_open(self, chance: random.Random, name: str) -> None:
        """Rename an array that no other thread uses, while two files of it are open with changes. Each step has to succeed."""
        with self._lock:
            if not self._undisturbed:
                raise OSError(errno.EBUSY, "each is in use")
            path = self._undisturbed.pop(chance.randrange(len(self._undisturbed)))
        new = path.removeprefix("g/") if path.startswith("g/") else f"g/{path}"
        view, suffix = chance.choice((("npy", ".npy"), ("chunks", ""), ("zarr3", ""), ("raw", "")))
        shown, is_at = self.mount / view, path
        self._note(path, "in", view)
        try:
            with (
                opened(self.mount / f"npy/{path}.npy", os.O_RDWR) as whole,
                opened(self.mount / f"chunks/{path}/0", os.O_RDWR) as chunk,
            ):
                indices, values = self._change_around(
                    lambda: os.rename(shown / f"{path}{suffix}", shown / f"{new}{suffix}"), whole, chunk, chance
                )
            is_at = new
            found = np.load(self.mount / f"npy/{new}.npy")[indices]
        except OSError as error:
            raise Illegal(f"{path}, which this thread alone uses, renamed in {view}: {error!r}") from error
        finally:
            with self._lock:
                self._undisturbed.append(is_at)
        if not np.array_equal(found, values):
            raise Illegal(f"{path}, now {new}: {values.tolist()} was written at {indices}, {found.tolist()} is there")

    def _change_around(
        self, rename: Callable[[], None], whole: int, chunk: int, chance: random.Random
    ) -> tuple[list[int], Elements]:
        """Write to the open `.npy` and the open first chunk before and after ``rename``; return indices and elements."""
        life, _, header = self._npy(read_all(whole, 1 << 20), "an array that no other thread uses", self.now())
        in_chunk = chance.randrange(CHUNK - 2)
        in_whole = chance.randrange(CHUNK, life.first_length - 2)
        indices = [in_chunk, in_chunk + 1, in_whole, in_whole + 1]
        with self.writing(life, indices) as values:
            os.pwrite(chunk, values[:1].tobytes(), 8 * in_chunk)
            os.pwrite(whole, values[2:3].tobytes(), header + 8 * in_whole)
            rename()
            os.pwrite(chunk, values[1:2].tobytes(), 8 * (in_chunk + 1))
            os.pwrite(whole, values[3:].tobytes(), header + 8 * (in_whole + 1))
            published(chunk, by_fsync=chance.random() < 0.5)
            published(whole, by_fsync=chance.random() < 0.5)
        return indices, values

    def _remove(self, chance: random.Random, name: str) -> None:
        # `rm -r` in another view removes chunk by chunk: until it is done, some chunks are missing legally.
        os.unlink(self.mount / f"npy/{name}.npy")

    def _rename_behind(self, chance: random.Random, name: str) -> None:
        new = chance.choice(NAMES)
        self._note("to", new)
        with self._renaming():
            os.rename(self.store / name, self.store / new)

    @contextmanager
    def _renaming(self) -> Iterator[None]:
        self._taken_along = 1 << 62
        try:
            yield
        finally:
            self._taken_along = self.now()

    def _make_behind(self, chance: random.Random, name: str) -> None:
        """Replace an array externally, as `mv` does."""
        life = self.new_life(is_marked=True)
        self._note("life", life.number)
        made = self.aside / str(life.number)
        self._create(made, life, is_sharded=chance.random() < 0.5)
        with suppress(OSError), self._renaming():
            os.rename(self.store / name, self.aside / f"old-{life.number}")
        os.rename(made, self.store / name)

    def _create(self, path: Path, life: Life, *, is_sharded: bool) -> None:
        """Create an array in a folder of its own, with zarr-python."""
        more: dict[str, Any] = {"shards": (SHARD,)} if is_sharded else {}
        array = zarr.create_array(
            str(path),
            shape=(life.first_length,),
            chunks=(CHUNK,),
            dtype="<i8",
            compressors=None,
            fill_value=-life.number,
            attributes={"life": life.number},
            zarr_format=3,
            **more,
        )
        array[:] = life.first()

    def _remove_behind(self, chance: random.Random, name: str) -> None:
        gone = self.aside / f"gone-{self.now()}"
        os.rename(self.store / name, gone)
        shutil.rmtree(gone)

    # --- at the end -----------------------------------------------------------------------------------------------------------

    def check_store(self) -> int:
        """Check all arrays in the store, and those removed from it, with another program; return the number of elements."""
        count, asked = 0, self.now()
        self._taken_along, self.ended = 0, asked
        for document in [*self.store.rglob("zarr.json"), *self.aside.glob("[!g]*/zarr.json")]:
            with suppress(zarr.errors.NodeTypeValidationError, zarr.errors.ContainsGroupError):
                if b'"array"' not in document.read_bytes():
                    continue
                elements = zarr.open_array(str(document.parent), mode="r")[:]
                what = f"{document.parent} at the end"
                # An array outside of the store keeps the state in which it was removed.
                since = asked if document.is_relative_to(self.store) else 0
                life, _ = self.life_of(elements, 0, what, since)
                self.demand_length(life, len(elements), what, since)
                count += len(elements)
        return count


MAPPER = """
import mmap, os, sys
try:
    fd = os.open(sys.argv[1], os.O_RDWR)
    with mmap.mmap(fd, os.fstat(fd).st_size) as mapped:
        data = bytes(mapped)
        sys.stdout.buffer.write(b"%d\\n" % len(data) + data)
        sys.stdout.flush()
        line = sys.stdin.buffer.readline()
        if line:
            offset, count = map(int, line.split())
            mapped[offset : offset + count] = sys.stdin.buffer.read(count)
            mapped.flush()
    os.close(fd)
except (OSError, ValueError) as error:
    sys.exit(getattr(error, "errno", None) or 22)
"""


def ended_with(code: int, path: Path) -> OSError:
    """Return the result of a process that mapped a file."""
    # A file that is replaced faster than it is opened has no pages, and cannot be mapped.
    number = errno.ESTALE if code in (-signal.SIGBUS, errno.ENODEV) else code
    return OSError(number, os.strerror(max(0, number)), str(path))


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """Open a file; raise the errors of close(2) if nothing else has failed."""
    fd = os.open(path, flags)
    try:
        yield fd
    except BaseException:
        with suppress(OSError):
            os.close(fd)
        raise
    os.close(fd)


def published(fd: int, *, by_fsync: bool) -> None:
    """Wait until written data is acknowledged and visible to others."""
    if by_fsync:
        os.fsync(fd)
        # This acknowledges the data. It is visible to others when close(2) returns, whatever its result.
        with suppress(OSError):
            flush(fd)
    else:
        flush(fd)


def flush(fd: int) -> None:
    """Do what close(2) does; return True if it was acknowledged."""
    os.close(os.dup(fd))


def read_all(fd: int, at_once: int) -> bytes:
    """Return all bytes of a file."""
    pieces, offset = [], 0
    while piece := os.pread(fd, at_once, offset):
        pieces.append(piece)
        offset += len(piece)
    return b"".join(pieces)
