"""How the arrays of the random model lie in a store: their shape and chunks, and the files of each layout.

Arrays are stored and read here without zarrfs: by zarr-python where it knows the layout, else as the files that it consists of.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numcodecs
import numpy as np
import zarr

from tests.support import reader_v3_2019, reader_v3_2022

Elements = np.ndarray[Any, np.dtype[np.int64]]
CHUNK, SHARD = 16, 64
"""Rows of a chunk, and of a shard."""

PADDING = -1
"""The index of an element of a chunk that is beyond the edge of the array."""


@dataclass(frozen=True)
class Geometry:
    """Shape and codecs of arrays. An element has its index in C order; arrays grow and shrink along the first dimension.

    ``width`` is the size of the second dimension, or 0 without one; ``is_plain`` means C order and no codecs.
    """

    width: int = 0
    chunk_width: int = 0
    is_plain: bool = True

    @property
    def row(self) -> int:
        """Number of elements of a row."""
        return self.width or 1

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        return (CHUNK, self.chunk_width) if self.width else (CHUNK,)

    @property
    def shard_shape(self) -> tuple[int, ...]:
        return (SHARD, 2 * self.chunk_width) if self.width else (SHARD,)

    @cached_property
    def chunk_size(self) -> int:
        """Number of elements of a chunk."""
        return int(np.prod(self.chunk_shape))

    def shape(self, length: int) -> tuple[int, ...]:
        return (length, self.width) if self.width else (length,)

    def chunk_of(self, index: int) -> tuple[int, int]:
        return index // self.row // CHUNK, index % self.row // (self.chunk_width or 1)

    def indices(self, coords: tuple[int, ...]) -> list[int]:
        """Return the index of each element of a chunk, in C order; rows have no end here."""
        rows = np.arange(coords[0] * CHUNK, (coords[0] + 1) * CHUNK)
        if not self.width:
            return [int(row) for row in rows]
        columns = np.arange(coords[1] * self.chunk_width, (coords[1] + 1) * self.chunk_width)
        return [int(row) * self.width + int(column) if column < self.width else PADDING for row in rows for column in columns]

    def encoded(self, chunk: Elements, indices: list[int], like: bytes) -> bytes:
        """Return the stored bytes of a chunk in C order, with the codecs and the order of the stored bytes ``like``."""
        data = chunk.reshape(self.chunk_shape).astype("<i8").tobytes(order=self._order(self._decompressed(like), indices))
        return gzip.compress(data, 1) if self._decompressed(like) != like else data

    def decoded(self, data: bytes, indices: list[int]) -> bytes:
        """Return the elements of a chunk in C order, whose stored bytes are compressed or not, in either order."""
        data = self._decompressed(data)
        if len(data) != 8 * self.chunk_size or not self.width:
            return data
        return np.frombuffer(data, "<i8").reshape(self.chunk_shape, order=self._order(data, indices)).tobytes()

    def _decompressed(self, data: bytes) -> bytes:
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" and len(data) != 8 * self.chunk_size else data

    def _order(self, data: bytes, indices: list[int]) -> Literal["C", "F"]:
        """Return the order of elements: that in which they are where they belong, if they are at all."""
        elements = np.frombuffer(data, "<i8")
        is_c = ((elements <= 0) | (elements >> 20 & 0xFFFFF == indices)).all()
        return "C" if is_c else "F"


class Blosc(Geometry):
    """Chunks as v0 stores them: of one dimension, and compressed by Blosc."""

    def encoded(self, chunk: Elements, indices: list[int], like: bytes) -> bytes:
        return bytes(numcodecs.Blosc("lz4", 5, 1).encode(chunk.astype("<i8")))

    def _decompressed(self, data: bytes) -> bytes:
        # The length of a container is in its header.
        is_container = data[:1] == b"\2" and int.from_bytes(data[12:16], "little") == len(data)
        return bytes(numcodecs.Blosc().decode(data)) if is_container else data


LINE, PLANE, BLOSC = Geometry(), Geometry(width=5, chunk_width=3, is_plain=False), Blosc()


@dataclass(frozen=True)
class Layout:
    """A layout in which one folder holds a node, written and read by zarr-python: final v3, or v2 with ``more`` for `create_array`."""

    dialect: str = "v3"
    document: str = "zarr.json"
    is_consolidated: bool = False
    geometry: Geometry = LINE
    options: tuple[str, ...] = ()
    is_one_folder: bool = True

    @property
    def version(self) -> int:
        return 3 if self.dialect == "v3" else 2

    def make_store(self, store: Path) -> None:
        """Create a store with a group ``g``."""
        zarr.create_group(str(store), zarr_format=self.version).create_group("g")  # type: ignore[arg-type]

    def document_of(self, name: str) -> str:
        """Return the key of the document with the shape."""
        return f"{name}/{self.document}"

    def places(self, name: str) -> tuple[str, ...]:
        """Return the prefixes and keys of a node, its document's first."""
        return (name,)

    def create(self, store: Path, name: str, elements: Elements, number: int, *, is_sharded: bool) -> None:
        """Create the array of life ``number``, which is its attribute and, negative, its fill value."""
        geometry = self.geometry
        more: dict[str, Any] = {"shards": geometry.shard_shape} if is_sharded and self.version == 3 else {}
        if not geometry.is_plain and self.version == 3:
            more |= {"filters": [zarr.codecs.TransposeCodec(order=(1, 0))]}
            if is_sharded:
                more["shards"] = {"shape": geometry.shard_shape, "index_location": "start"}
        if self.version == 2:
            more |= {"order": "C" if geometry.is_plain else "F"}
            if not geometry.is_plain:
                more |= {"chunk_key_encoding": {"name": "v2", "separator": "/"}}
        gzips = zarr.codecs.GzipCodec(level=1) if self.version == 3 else numcodecs.GZip(1)
        array = zarr.create_array(
            str(store / name),
            shape=geometry.shape(len(elements) // geometry.row),
            chunks=geometry.chunk_shape,
            dtype="<i8",
            compressors=None if geometry.is_plain else gzips,
            fill_value=-number,
            attributes={"life": number},
            zarr_format=self.version,  # type: ignore[arg-type]
            **more,
        )
        array[...] = elements.reshape(array.shape)

    def move(self, store: Path, name: str, to: Path, new: str) -> None:
        """Rename an array as another program does, from one store to another."""
        for place, target in zip(self.places(name), self.places(new), strict=True):
            with suppress(FileNotFoundError):
                (to / target).parent.mkdir(parents=True, exist_ok=True)
            os.rename(store / place, to / target)

    def remove(self, store: Path, name: str, aside: Path) -> None:
        """Remove an array as another program does."""
        self.move(store, name, aside, name)
        shutil.rmtree(aside)

    def arrays(self, store: Path) -> Iterator[tuple[str, Elements]]:
        """Yield the place and the elements of every array, in C order."""
        for document in store.rglob(self.document):
            with suppress(zarr.errors.NodeTypeValidationError, zarr.errors.ContainsGroupError):
                if b'"shape"' in document.read_bytes():
                    elements = zarr.open_array(str(document.parent), mode="r", zarr_format=self.version)[...]  # type: ignore[arg-type]
                    yield str(document.parent), np.asarray(elements).reshape(-1)

    def consolidate(self, store: Path) -> None:
        """Create the consolidated copy, if there is to be one."""
        if self.is_consolidated:
            zarr.consolidate_metadata(str(store), zarr_format=self.version)  # type: ignore[arg-type]

    def check_copy(self, store: Path) -> None:
        """Check that the consolidated copy, if there is one, agrees with the documents of arrays."""
        if not self.is_consolidated:
            return
        if self.version == 3:
            documents = json.loads((store / "zarr.json").read_bytes())["consolidated_metadata"]["metadata"]
            copy = {f"{path}/zarr.json": document for path, document in documents.items()}
        else:
            copy = json.loads((store / ".zmetadata").read_bytes())["metadata"]
        for name in dict.fromkeys((self.document, ".zattrs")):
            stored = {str(path.relative_to(store)): json.loads(path.read_bytes()) for path in store.glob(f"**/{name}")}
            arrays = {key: document for key, document in stored.items() if document.get("node_type") != "group"}
            copied = {key: each for key, each in copy.items() if key.endswith(name) and each.get("node_type") != "group"}
            differ = {key for key in copied.keys() | arrays.keys() if copied.get(key, {}) != arrays.get(key, {})}
            assert not differ, "\n".join(f"{key}: {copied.get(key)} for {stored.get(key)}" for key in differ)


class ByFiles(Layout):
    """A layout that zarr-python 3 does not know: its arrays are one-dimensional, and stored and read as files."""

    def make_store(self, store: Path) -> None:
        for key, document in self.groups.items():
            (store / key).parent.mkdir(parents=True, exist_ok=True)
            (store / key).write_text(json.dumps(document))
        (store / "g").mkdir(parents=True, exist_ok=True) if not self.groups else None

    @property
    def groups(self) -> Mapping[str, Any]:
        """The documents of the store and its group."""
        return {}

    def described(self, length: int, number: int, *, is_sharded: bool) -> Mapping[str, Any]:
        """Return the documents of an array, by the end of their key after that of the document with the shape."""
        raise NotImplementedError

    def chunk_key(self, name: str, number: int) -> str:
        return f"{self.places(name)[-1]}/{number}"

    def create(self, store: Path, name: str, elements: Elements, number: int, *, is_sharded: bool) -> None:
        length, chunks = len(elements), -(-len(elements) // CHUNK)
        padded = np.concatenate([elements, np.full(chunks * CHUNK - length, -number)]).astype("<i8").reshape(chunks, CHUNK)
        plain = self.geometry is not BLOSC
        values = {number: chunk.tobytes() if plain else BLOSC.encoded(chunk, [], b"") for number, chunk in enumerate(padded)}
        if is_sharded and self.dialect == "v3_2022":
            values = sharded(values)
        for each, value in values.items():
            path = store / self.chunk_key(name, each)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(value)
        for key, document in self.described(length, number, is_sharded=is_sharded).items():
            path = store / (self.document_of(name) if not key else f"{name}/{key}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(document))


def sharded(values: Mapping[int, bytes]) -> dict[int, bytes]:
    """Return the shards of these chunks in the form of 2022: the chunks, then the index."""
    per_shard, shards = SHARD // CHUNK, dict[int, bytes]()
    for shard in {number // per_shard for number in values}:
        data, index = b"", b""
        for number in range(shard * per_shard, (shard + 1) * per_shard):
            value = values.get(number)
            index += np.array([2**64 - 1] * 2 if value is None else [len(data), len(value)], "<u8").tobytes()
            data += value or b""
        shards[shard] = data + index
    return shards


class V1(ByFiles):
    """v1: ``meta`` and ``attrs`` beside the chunks; no groups."""

    ATTRIBUTES = "attrs"

    def described(self, length: int, number: int, *, is_sharded: bool) -> Mapping[str, Any]:
        shape = {"zarr_format": 1, "shape": [length], "chunks": [CHUNK], "dtype": "<i8", "order": "C", "fill_value": -number}
        return {self.ATTRIBUTES: {"life": number}, "": {**shape, "compression": "none", "compression_opts": None}}

    def arrays(self, store: Path) -> Iterator[tuple[str, Elements]]:
        for path in store.rglob(self.document):
            meta = json.loads(path.read_bytes())
            (length,) = meta["shape"]
            elements = np.full(-(-length // CHUNK) * CHUNK, meta["fill_value"], "<i8")
            for number in range(len(elements) // CHUNK):
                with suppress(FileNotFoundError):
                    data = self.geometry.decoded(Path(self.chunk_key(str(path.parent), number)).read_bytes(), [])
                    elements[number * CHUNK : (number + 1) * CHUNK] = np.frombuffer(data, "<i8")
            yield str(path.parent), elements[:length]


class V0(V1):
    """v0: ``__zmeta__`` and ``__zattr__``, with the compressed chunks in a folder beside them; no groups."""

    ATTRIBUTES = "__zattr__"

    def described(self, length: int, number: int, *, is_sharded: bool) -> Mapping[str, Any]:
        shape = {"shape": [length], "chunks": [CHUNK], "dtype": "<i8", "fill_value": -number}
        return {self.ATTRIBUTES: {"life": number}, "": {**shape, "cname": "lz4", "clevel": 5, "shuffle": 1}}

    def chunk_key(self, name: str, number: int) -> str:
        return f"{name}/__zdata__/{number}.blosc"


class Draft(ByFiles):
    """A draft of v3: documents below ``meta``, chunks below ``data``."""

    URI = "https://purl.org/zarr/spec/protocol/core/3.0"

    @property
    def suffix(self) -> str:
        return ".json" if self.dialect == "v3_2022" else ""

    @property
    def groups(self) -> Mapping[str, Any]:
        if self.dialect == "v3_2022":
            entry = {"zarr_format": self.URI, "metadata_encoding": self.URI, "metadata_key_suffix": ".json", "extensions": []}
            return {"zarr.json": entry, "meta/root/g.group.json": {"attributes": {}}}
        entry = {"zarr_format": self.URI, "metadata_encoding": "application/json", "extensions": []}
        return {"zarr.json": entry, "meta/root/g.group": {"extensions": [], "attributes": {}}}

    def document_of(self, name: str) -> str:
        return f"meta/root/{name}.array{self.suffix}"

    def places(self, name: str) -> tuple[str, ...]:
        return self.document_of(name), f"data/root/{name}" if self.dialect == "v3_2022" else f"data/{name}"

    def chunk_key(self, name: str, number: int) -> str:
        return f"{self.places(name)[-1]}/{'c' if self.dialect == 'v3_2022' else ''}{number}"

    def described(self, length: int, number: int, *, is_sharded: bool) -> Mapping[str, Any]:
        document: dict[str, Any] = {
            "shape": [length],
            "data_type": "<i8",
            "chunk_grid": {"type": "regular", "chunk_shape": [CHUNK], "separator": "/"},
            "chunk_memory_layout": "C",
            "fill_value": -number,
            "extensions": [],
            "attributes": {"life": number},
        }
        if is_sharded and self.dialect == "v3_2022":
            transformer = "https://purl.org/zarr/spec/storage_transformers/sharding/1.0"
            per_shard = {"chunks_per_shard": [SHARD // CHUNK]}
            document["storage_transformers"] = [{"extension": transformer, "type": "indexed", "configuration": per_shard}]
        return {"": document}

    def move(self, store: Path, name: str, to: Path, new: str) -> None:
        document, data = self.places(name)
        new_document, new_data = self.places(new)
        for each in (new_document, new_data):
            (to / each).parent.mkdir(parents=True, exist_ok=True)
        os.rename(store / document, to / new_document)
        # Chunks without a document are no array: they are in the way of nobody.
        shutil.rmtree(to / new_data, ignore_errors=True)
        with suppress(FileNotFoundError):
            os.rename(store / data, to / new_data)

    def arrays(self, store: Path) -> Iterator[tuple[str, Elements]]:
        for path in (store / "meta").rglob(f"*.array{self.suffix}"):
            document, name = json.loads(path.read_bytes()), str(path.relative_to(store / "meta/root"))
            name = name.removesuffix(f".array{self.suffix}")
            if self.dialect == "v3_2022":
                data = self.places(name)[1] + "/"
                values = {data + each.name: each.read_bytes() for each in (store / data).glob("*")}
                yield str(path), reader_v3_2022.array(values, data, document, "c0")
            else:
                yield str(path), reader_v3_2019.read(store, f"/{name}", document)[0]


V3 = Layout()
V2 = Layout("v2", ".zarray")
V2_CONSOLIDATED = Layout("v2", ".zarray", is_consolidated=True)
V3_CONSOLIDATED = Layout(is_consolidated=True)
V3_PLANES = Layout(geometry=PLANE, options=("--new-codecs", "gzip:level=1"))
V2_PLANES = Layout("v2", ".zarray", geometry=PLANE, options=("--new-codecs", "gzip:level=1", "--new-separator", "/"))
V0_FILES = V0("v0", "__zmeta__", geometry=BLOSC, options=("--new-codecs", "blosc:cname=lz4:clevel=5"))
V1_FILES = V1("v1", "meta")
V3_2019 = Draft("v3_2019", ".array", is_one_folder=False)
V3_2022 = Draft("v3_2022", ".array.json", is_one_folder=False)
V3_2022_SHARDS = Draft("v3_2022", ".array.json", is_one_folder=False, options=("--new-shards", str(SHARD // CHUNK)))
