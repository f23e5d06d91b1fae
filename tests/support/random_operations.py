"""The operations of the random model, through one mount of a store or several, and as other programs."""

from __future__ import annotations

import errno
import io
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

import numpy as np

from tests.support import forge
from tests.support.random_layouts import CHUNK, Elements, Layout
from tests.support.random_model import EXPECTED, SHORTEST, Illegal, Life, Model, lives

MAP_FILE = Path(__file__).with_name("map_file.py")

NAMES = ("a", "b", "g/a", "g/b")


class Operations(Model):
    """Random operations on one store."""

    def __init__(self, store: Path, aside: Path, seed: int, layout: Layout, *, mounts: int = 1) -> None:
        super().__init__(store, aside, seed, layout)
        self._mounts: list[Path] = []
        self._of_thread = threading.local()
        self._editor = threading.Lock()
        """Held by an editor that changes a document in place: of two at once, one may leave the end of the other's text."""
        self._putter: AbstractContextManager[object] = nullcontext() if layout.is_one_folder else threading.Lock()
        """Held where documents have no folder of their own: what puts a changed document in place could find another array's there."""
        self._undisturbed: list[list[str]] = [[] for _ in range(mounts)]
        """By mount, paths of arrays that `_rename_open` alone uses, each by one thread at a time."""
        self.is_calm = random.Random(seed).random() < 0.5
        """True if arrays are seldom replaced, renamed and removed, so that many operations meet in one."""

    @property
    def mount(self) -> Path:
        """The mount that the current operation of this thread uses."""
        return self._mounts[self._number]

    @property
    def _number(self) -> int:
        return int(self._of_thread.number)

    def add_arrays(self, count: int) -> None:
        """Create arrays that `_rename_open` alone uses, and others, every second one sharded, before the store is mounted."""
        for number in range(count):
            name = f"undisturbed{number}"
            self._create(self.store, name, self.new_life(is_marked=True), is_sharded=number % 2 == 1)
            self._undisturbed[number // 2 % len(self._undisturbed)].append(name)
        for number, name in enumerate(NAMES):
            self._create(self.store, name, self.new_life(is_marked=True), is_sharded=number % 2 == 1)

    def run(self, mounts: list[Path], seconds: float, threads: int) -> None:
        """Run random operations on ``mounts`` for that long; raise `Illegal` with all findings."""
        self._mounts = mounts
        until = time.monotonic() + seconds
        workers = [threading.Thread(target=self._work, args=(number, until), daemon=True) for number in range(threads)]
        for each in workers:
            each.start()
        for each in workers:
            each.join()
        self.demand_all_legal()

    def _work(self, number: int, until: float) -> None:
        chance = random.Random(f"{self.seed}-{number}")
        often: list[Callable[[random.Random, str], None]] = [
            *[self._write_npy] * 4,
            *[self._write_chunk] * 6,
            *[self._write_encoded] * 2,
            *[self._map_npy] * 2,
            *[self._read_npy] * 3,
            *[self._read_chunk] * 3,
            *[self._rename_open] * 2,
        ]
        # What another program puts in the place of an array is told from it by its folder, where one folder holds it.
        replacing = [self._rename_behind, *[self._make_behind] * 2] if self.layout.is_one_folder else [self._make_apart] * 2
        seldom = [*[self._save] * 2, self._rename, self._remove, self._remove_behind, self._resize, self._resize_behind, *replacing]
        if self.layout.is_consolidated:
            # The copy agrees with the documents in the end, if no other program has changed them.
            seldom = [*[self._save] * 2, self._rename, self._remove, *[self._resize] * 2]
        actions = often * (10 if self.is_calm else 1) + seldom
        putting = (self._save, self._rename, self._remove, self._remove_behind, self._resize_behind, *replacing)
        while time.monotonic() < until and not self.illegal:
            action, name = chance.choice(actions), chance.choice(NAMES)
            self._of_thread.number = chance.randrange(len(self._mounts))
            if len(self._mounts) > 1:
                self._note("in mount", self._number)
            begun, outcome = self.now(), "0"
            try:
                with self._putter if action in putting else nullcontext():
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
        # A file in Fortran order is one that is being saved; it has another header, and another order, when it is stored.
        header = len(data) - elements.nbytes if elements.flags.c_contiguous else None
        elements = elements.reshape(-1)
        life, _ = self.life_of(elements, range(len(elements)), what, asked)
        self.demand_length(life, len(elements), what, asked)
        if header is None:
            raise OSError(errno.ESTALE, f"{what} is being written")
        return life, elements, header

    def _write_npy(self, chance: random.Random, name: str) -> None:
        asked = self.now()
        with opened(self.mount / f"npy/{name}.npy", os.O_RDWR) as fd:
            life, elements, header = self._npy(read_all(fd, 1 << 20), f"npy/{name}.npy", asked)
            start = chance.randrange(len(elements))
            indices = list(range(start, min(len(elements), start + chance.choice((1, 3, CHUNK, 40)))))
            by_fsync = chance.random() < 0.5
            with self.writing(life, indices, by_fsync=by_fsync) as values:
                os.pwrite(fd, values.tobytes(), header + 8 * start)
                published(fd, by_fsync=by_fsync)

    def _map_npy(self, chance: random.Random, name: str) -> None:
        """Map a file in another process. That is not forked from this one: the kernel keeps names of files that a child has open."""
        asked, path = self.now(), self.mount / f"npy/{name}.npy"
        with forge.Process([str(path)], script=MAP_FILE) as mapper:
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
                if code := mapper.wait():
                    raise ended_with(code, path)

    def _resize(self, chance: random.Random, name: str) -> None:
        """Change the shape as an editor changes a document, in place."""
        stored = [] if self.layout.is_consolidated else [f"raw/{self.layout.document_of(name)}"]
        document = chance.choice((f"chunks/{name}/.zarray", f"zarr3/{name}/zarr.json", *stored))
        self._note(document)
        with self._editor, opened(self.mount / document, os.O_RDWR) as fd:

            def written(text: bytes) -> None:
                os.pwrite(fd, text, 0)
                os.ftruncate(fd, len(text))
                flush(fd)

            self._resize_by(chance, read_all(fd, 1 << 20), written, behind=False)

    def _resize_behind(self, chance: random.Random, name: str) -> None:
        """Change the shape in the array that was read, whatever is under its name now."""
        place = self.store / self.layout.document_of(name)
        with opened(place.parent, os.O_RDONLY | os.O_DIRECTORY) as folder:

            def written(text: bytes) -> None:
                Path(f"/proc/self/fd/{folder}/.new").write_bytes(text)
                os.rename(".new", place.name, src_dir_fd=folder, dst_dir_fd=folder)

            self._resize_by(chance, Path(f"/proc/self/fd/{folder}/{place.name}").read_bytes(), written, behind=True)

    def _resize_by(self, chance: random.Random, text: bytes, write: Callable[[bytes], object], *, behind: bool) -> None:
        try:
            document = json.loads(text)
        except ValueError as error:
            raise OSError(errno.ESTALE, "somebody is writing it") from error
        if "shape" not in document:
            raise FileNotFoundError(errno.ENOENT, "no array: its folder is still, or again, there")
        length, *width = document["shape"]
        # Documents of v1 and v2 have the fill value, but no attributes. That of a .zarray of v3 in chunks/ has neither: the length
        # identifies an array that was never resized.
        number = document.get("attributes", {}).get("life") or -(document["fill_value"] or (SHORTEST - length) / 2)
        life = self._lives.get(number)
        if life is None or not life.is_marked or (length % 2 == 0 and length != life.first_length):
            raise FileNotFoundError(errno.ENOENT, "no array that can be resized")
        # Odd: an array that is saved over one of the same shape may take its place chunk by chunk.
        length = chance.randrange(SHORTEST + 1, life.first_length + 3 * CHUNK, 2)
        with self.resizing(life, length, behind=behind):
            write(json.dumps(document | {"shape": [length, *width]}).encode())

    def _chunk(self, chance: random.Random, name: str, view: str) -> tuple[Path, list[int]]:
        """Return a chunk file that is listed, and the indices of its elements."""
        folder, separator = self.mount / view / name / ("c" if view == "zarr3" else ""), "/" if view == "zarr3" else "."
        self._note(folder.relative_to(self.mount))
        found = ""
        for _ in self.geometry.chunk_shape if view == "zarr3" else (1,):
            numbers = [each for each in os.listdir(folder / found) if each.replace(".", "").isdecimal()]
            if not numbers:
                raise FileNotFoundError(errno.ENOENT, "no chunks")
            found += f"/{chance.choice(numbers)}" if found else chance.choice(numbers)
        self._note(found)
        return folder / found, self.geometry.indices(tuple(map(int, found.split(separator))))

    def _read_chunk(self, chance: random.Random, name: str) -> None:
        path, indices = self._chunk(chance, name, view := chance.choice(("chunks", "zarr3")))
        asked = self.now()
        with opened(path, os.O_RDONLY) as fd:
            data = read_all(fd, 1 << 20)
        self._elements(data, indices, str(path), asked, is_encoded=view == "zarr3")

    def _elements(
        self, data: bytes, indices: list[int], what: str, asked: int, *, is_encoded: bool = False
    ) -> tuple[Life, Elements, dict[int, int]]:
        """Return the life, all elements, and the numbers of those inside the array in any case; beyond its end a chunk is padded."""
        if is_encoded:
            if not data:
                raise OSError(errno.ESTALE, f"{what} is being written")
            data = self.geometry.decoded(data, indices)
        if len(data) != 8 * len(indices):
            raise Illegal(f"{what}: {len(data)} bytes, {data[:40]!r}")
        elements = np.frombuffer(data, "<i8")
        if indices[0] >= SHORTEST * self.geometry.row and not lives(elements):
            raise FileNotFoundError(errno.ENOENT, "a missing chunk, of an array that grew")
        life, numbers = self.life_of(elements, indices, what, asked)
        return life, elements, {index: number for index, number in numbers.items() if self.inside(life, index)}

    def _write_chunk(self, chance: random.Random, name: str) -> None:
        path, indices = self._chunk(chance, name, "chunks")
        asked = self.now()
        with opened(path, os.O_RDWR) as fd:
            life, _, numbers = self._elements(read_all(fd, 1 << 20), indices, str(path), asked)
            if not numbers:
                raise FileNotFoundError(errno.ENOENT, "nothing of it is inside")
            start = stop = chance.choice([place for place, index in enumerate(indices) if index in numbers])
            most = start + chance.choice((1, 2, CHUNK))
            while stop < min(most, len(indices)) and indices[stop] in numbers:
                stop += 1
            by_fsync = chance.random() < 0.5
            with self.writing(life, indices[start:stop], by_fsync=by_fsync) as values:
                os.pwrite(fd, values.tobytes(), 8 * start)
                published(fd, by_fsync=by_fsync)

    def _write_encoded(self, chance: random.Random, name: str) -> None:
        """Write the whole chunk, as a program that has read and decoded it before: the last close wins."""
        path, indices = self._chunk(chance, name, "zarr3")
        asked = self.now()
        with opened(path, os.O_RDWR) as fd:
            data = read_all(fd, 1 << 20)
            life, elements, numbers = self._elements(data, indices, str(path), asked, is_encoded=True)
            if not numbers:
                raise FileNotFoundError(errno.ENOENT, "nothing of it is inside")
            with self.writing(life, [chance.choice(list(numbers))], numbers) as values:
                written = dict(zip(sorted(numbers), values.tolist(), strict=True))
                changed = np.array([written.get(index, old) for index, old in zip(indices, elements.tolist(), strict=True)], "<i8")
                self._write_whole(fd, changed, indices, data)

    def _write_whole(self, fd: int, elements: Elements, indices: list[int], old: bytes) -> None:
        if len(old) == elements.nbytes and self.geometry.decoded(old, indices) == old:
            os.pwrite(fd, elements.tobytes(), 0)
        else:
            # Its codecs are those of `Geometry.encoded`, or those of an array saved in another order.
            os.ftruncate(fd, 0)
            os.pwrite(fd, self.geometry.encoded(elements, indices, like=old), 0)
        flush(fd)

    def _save(self, chance: random.Random, name: str) -> None:
        life = self.new_life()
        self._note("life", life.number)
        data, shape = io.BytesIO(), self.geometry.shape(life.first_length)
        np.save(data, np.asarray(self.first(life).reshape(shape), order=chance.choice("CF")))
        path = self.mount / f"npy/{name}.npy"
        # A temporary file renamed over it, or a new file: readers of a file truncated and rewritten in place see parts, as on any system.
        written = path.with_name(f".{life.number}.tmp") if chance.random() < 0.7 else path
        with opened(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
            os.write(fd, data.getvalue())
            flush(fd)
        if written != path:
            os.rename(written, path)

    @property
    def _views_of_nodes(self) -> tuple[str, ...]:
        # A change in raw/ is that of one place, and of no consolidated copy.
        is_one_place = self.layout.is_one_folder and not self.layout.is_consolidated
        return ("npy", "chunks", "zarr3", "raw") if is_one_place else ("npy", "chunks", "zarr3")

    def _rename(self, chance: random.Random, name: str) -> None:
        view, new = chance.choice(self._views_of_nodes), chance.choice(NAMES)
        suffix = ".npy" if view == "npy" else ""
        self._note(view, "to", new)
        os.rename(self.mount / view / f"{name}{suffix}", self.mount / view / f"{new}{suffix}")

    def _rename_open(self, chance: random.Random, name: str) -> None:
        """Rename an array that no other thread uses, while two files of it are open with changes. Each step has to succeed."""
        undisturbed = self._undisturbed[self._number]
        with self._lock:
            if not undisturbed:
                raise OSError(errno.EBUSY, "each is in use")
            path = undisturbed.pop(chance.randrange(len(undisturbed)))
        new = path.removeprefix("g/") if path.startswith("g/") else f"g/{path}"
        view = chance.choice(self._views_of_nodes)
        suffix = ".npy" if view == "npy" else ""
        shown, is_at = self.mount / view, path
        self._note(path, "in", view)
        try:
            with (
                opened(self.mount / f"npy/{path}.npy", os.O_RDWR) as whole,
                opened(self.mount / f"chunks/{path}/{'0.0' if self.geometry.width else 0}", os.O_RDWR) as chunk,
            ):
                indices, values = self._change_around(
                    lambda: os.rename(shown / f"{path}{suffix}", shown / f"{new}{suffix}"), whole, chunk, chance
                )
            is_at = new
            found = np.load(self.mount / f"npy/{new}.npy").reshape(-1)[indices]
        except OSError as error:
            raise Illegal(f"{path}, which this thread alone uses, renamed in {view}: {error!r}") from error
        finally:
            with self._lock:
                undisturbed.append(is_at)
        if not np.array_equal(found, values):
            raise Illegal(f"{path}, now {new}: {values.tolist()} was written at {indices}, {found.tolist()} is there")

    def _change_around(
        self, rename: Callable[[], None], whole: int, chunk: int, chance: random.Random
    ) -> tuple[list[int], Elements]:
        """Write to the open `.npy` and the open first chunk before and after ``rename``; return indices and elements."""
        life, _, header = self._npy(read_all(whole, 1 << 20), "an array that no other thread uses", self.now())
        in_chunk, row = chance.randrange(self.geometry.chunk_size - 2), self.geometry.row
        in_whole = chance.randrange(CHUNK * row, life.first_length * row - 2)
        of_chunk = self.geometry.indices((0, 0) if self.geometry.width else (0,))
        indices = [*of_chunk[in_chunk : in_chunk + 2], in_whole, in_whole + 1]
        by_fsync = chance.random() < 0.5
        with self.writing(life, indices, by_fsync=by_fsync) as values:
            os.pwrite(chunk, values[:1].tobytes(), 8 * in_chunk)
            os.pwrite(whole, values[2:3].tobytes(), header + 8 * in_whole)
            rename()
            os.pwrite(chunk, values[1:2].tobytes(), 8 * (in_chunk + 1))
            os.pwrite(whole, values[3:].tobytes(), header + 8 * (in_whole + 1))
            published(chunk, by_fsync=by_fsync or chance.random() < 0.5)
            published(whole, by_fsync=by_fsync or chance.random() < 0.5)
        return indices, values

    def _remove(self, chance: random.Random, name: str) -> None:
        # `rm -r` in another view removes chunk by chunk: until it is done, some chunks are missing legally.
        os.unlink(self.mount / f"npy/{name}.npy")

    def _rename_behind(self, chance: random.Random, name: str) -> None:
        new = chance.choice(NAMES)
        self._note("to", new)
        with self._renaming():
            self.layout.move(self.store, name, self.store, new)

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
        self._create(made, "x", life, is_sharded=chance.random() < 0.5)
        with suppress(OSError), self._renaming():
            self.layout.move(self.store, name, self.aside / f"old-{life.number}", "x")
        self.layout.move(made, "x", self.store, name)

    def _make_apart(self, chance: random.Random, name: str) -> None:
        """Create an array externally under a new name, and rename it through the mount."""
        life = self.new_life(is_marked=True)
        self._note("life", life.number)
        self._create(self.store, new := f"new{life.number}", life, is_sharded=chance.random() < 0.5)
        os.rename(self.mount / f"npy/{new}.npy", self.mount / f"npy/{name}.npy")

    def _create(self, store: Path, name: str, life: Life, *, is_sharded: bool) -> None:
        self.layout.create(store, name, self.first(life), life.number, is_sharded=is_sharded)

    def _remove_behind(self, chance: random.Random, name: str) -> None:
        self.layout.remove(self.store, name, self.aside / f"gone-{self.now()}")


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
