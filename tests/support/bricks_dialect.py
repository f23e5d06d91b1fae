"""Two dialects in one file, for tests: ``bricks``, with codec chains, keys and chunks of its own, and ``walls``, its read-only form.

a/bricks.json    {"shape": [5, 7], "brick": [2, 4], "type": "int16", "fill": 3}
                 or "edges": [[1, 4], [7]] instead of "brick": unequal bricks, on a grid that final v3 has no form for
a/1/0            the chunk (0, 1): keys have the last coordinate first; chunks are encoded by `tests.support.brick_codec`
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tests.support.unequal_chunks import UnequalGrid
from zarrfs.codecs.chain import CodecChain
from zarrfs.dialects import documents
from zarrfs.dialects.arrays_only import ArraysOnlyLayout
from zarrfs.dialects.base import Dialect, Documents
from zarrfs.dialects.read_only import ReadOnlyLayout
from zarrfs.errors import MetadataUnsupported, NotRepresentable
from zarrfs.keys import Key, Prefix
from zarrfs.model import fill_value
from zarrfs.model.chunk_grid import ChunkGrid, RegularGrid, Shape
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import from_name
from zarrfs.model.metadata import ArrayMetadata, check_chunk_nbytes

KEYS = ChunkKeyEncoding(prefix="", separator="/", scalar="0", backwards=True)
CODECS = (CodecSpec("test.brick"),)


@dataclass(frozen=True)
class BricksLayout(ArraysOnlyLayout):
    """The layout of ``bricks``: arrays only."""

    array_name: ClassVar[str] = "bricks.json"
    attributes_name: ClassVar[str] = "bricks.attributes.json"

    def parse_array(self, document: Mapping[str, Any]) -> tuple[ArrayMetadata, tuple[str, ...]]:
        shape = documents.shape(documents.member(document, "shape"), "shape")
        grid: ChunkGrid
        if "edges" in document:
            grid = UnequalGrid(tuple(documents.shape(each, "edges") for each in documents.array(document["edges"], "edges")))
        else:
            grid = RegularGrid.checked(documents.shape(documents.member(document, "brick"), "brick"), shape)
        name = documents.string(documents.member(document, "type"), "type")
        if name not in Bricks.data_types:
            raise MetadataUnsupported(f"type {documents.shortened(name)} is not known")
        data_type = from_name(name)
        check_chunk_nbytes(grid.largest, data_type)
        CodecChain.build(CODECS, data_type).check(grid.largest)
        fill = document.get("fill")
        return ArrayMetadata(
            shape=shape,
            data_type=data_type,
            chunk_grid=grid,
            chunk_key_encoding=KEYS,
            fill_value=None if fill is None else fill_value.from_json(data_type, fill),
            codecs=CODECS,
        ), ()

    def format_array(self, metadata: ArrayMetadata) -> dict[str, Any]:
        grid, fill = metadata.chunk_grid, metadata.fill_value
        if (metadata.codecs, metadata.chunk_key_encoding, metadata.shards) != (CODECS, KEYS, ()):
            raise NotRepresentable("bricks are bricks")
        if not isinstance(grid, RegularGrid) or metadata.data_type.name not in Bricks.data_types:
            raise NotRepresentable("bricks are regular, and of few types")
        return {
            "shape": list(metadata.shape),
            "brick": list(grid.chunks),
            "type": metadata.data_type.name,
            "fill": None if fill is None else fill_value.to_json(metadata.data_type, fill),
        }


class Bricks(Dialect):
    """The dialect ``bricks``. Bricks of new arrays are no longer than 4."""

    name = "bricks"
    priority = 200
    has_groups = False
    chunk_key_encoding = KEYS
    new_codecs = CODECS
    data_types: ClassVar[tuple[str, ...]] = ("int16", "uint8", "float32")
    layout: ClassVar[type[ArraysOnlyLayout]] = BricksLayout

    def chunk_grid(self, chunks: Shape, shape: Shape) -> ChunkGrid:
        return RegularGrid.checked(tuple(min(length, 4) for length in chunks), shape)

    def root_keys(self, prefix: Prefix) -> tuple[Key, ...]:
        return prefix.key(self.layout.array_name), prefix.key(self.layout.attributes_name)

    def open(self, prefix: Prefix, documents: Documents) -> ArraysOnlyLayout | None:
        return self.create(prefix) if self.root_keys(prefix)[0] in documents else None

    def create(self, prefix: Prefix) -> ArraysOnlyLayout:
        return self.layout(self, prefix)


@dataclass(frozen=True)
class WallsLayout(ReadOnlyLayout, BricksLayout):
    """The layout of ``walls``: arrays only."""

    array_name: ClassVar[str] = "walls.json"
    attributes_name: ClassVar[str] = "walls.attributes.json"


class Walls(Bricks):
    """The dialect ``walls``: ``bricks`` without writing."""

    name = "walls"
    priority = 201
    writable = False
    layout = WallsLayout
    examples = (
        {"walls.json": json.dumps({"shape": [5, 7], "brick": [2, 4], "type": "int16", "fill": 3}).encode()},
        {
            "walls.json": json.dumps({"shape": [], "brick": [], "type": "uint8", "fill": None}).encode(),
            "walls.attributes.json": b'{"a": 1}',
        },
    )


PLUGIN = (Bricks(), Walls())
