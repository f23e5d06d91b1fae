"""Chunk shape and codecs of new arrays whose program cannot choose them: from the mount's options."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from zarrfs.codecs import lookup
from zarrfs.codecs.base import ArrayBytesCodec
from zarrfs.codecs.bytes import Bytes
from zarrfs.codecs.chain import CodecChain
from zarrfs.dialects.base import Layout
from zarrfs.dialects.memory_order import order_codecs
from zarrfs.errors import NotRepresentable, UsageError, ZarrfsError
from zarrfs.keys import NodePath
from zarrfs.model.chunk_grid import Shape
from zarrfs.model.chunk_guess import guess_chunks
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import DataType, from_numpy
from zarrfs.model.fill_value import default
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, check_chunk_nbytes
from zarrfs.model.shards import ShardSpec

# Types to try codecs with before an array exists: one of them must be accepted.
_TYPES = tuple(from_numpy(np.dtype(name)) for name in ("<f4", "<i4", "|u1", "|b1"))
_AUTO = "auto"
_NONE = "none"


class NewArrays:
    """Chunking and encoding of new arrays.

    ``chunks``: ``auto`` (as zarr-python chooses), ``none`` (one chunk), or lengths joined by ``x`` (``512x512``; a single length applies
    to every dimension). ``codecs``: ``auto`` (those of the dialect), ``none``, or codecs joined by ``+``, each a name and its options
    joined by ``:`` (``gzip:level=6+crc32c``); ``bytes`` precedes them unless one of them is an array -> bytes codec. ``separator``: in
    chunk keys, ``auto`` for the dialect's. ``shards``: ``none``, or chunks along each dimension of a shard, as ``chunks``. Raises
    `UsageError` for another form or unknown codecs.
    """

    def __init__(self, *, chunks: str = _AUTO, codecs: str = _AUTO, separator: str = _AUTO, shards: str = _NONE) -> None:
        self._chunks = _parse_chunks(chunks)
        self._shards = _parse_shards(shards)
        self._separator = None if separator == _AUTO else separator
        self._codecs = None if codecs.strip().lower() == _AUTO else _parse_codecs(codecs)

    def node(
        self,
        path: NodePath,
        layout: Layout,
        *,
        shape: Shape,
        data_type: DataType,
        chunk_shape: Shape | None = None,
        order: str = "C",
        fill_value: bytes | None = None,
        separator: str | None = None,
    ) -> ArrayNode:
        """Return a new array at ``path``, as ``layout`` represents it.

        ``chunk_shape``, ``separator`` (in chunk keys): the program's choice, if any; ``order``: ``C`` or ``F``, of elements within a
        chunk, if the layout has such an order; ``fill_value``: one element; None for `fill_value.default`, or an undefined value if the
        layout cannot represent it. Raises `NotRepresentable` and `MetadataError` if the layout or the codecs cannot hold the array.
        """
        if order not in ("C", "F"):
            raise ValueError(f"order is 'C' or 'F', not {order!r}")
        layout.require_writable()
        chunk_shape = self._chunk_shape(shape, data_type.itemsize) if chunk_shape is None else chunk_shape
        check_chunk_nbytes(chunk_shape, data_type)
        fills = (fill_value,) if fill_value is not None else (default(data_type), None)
        transpose = order_codecs(order, len(shape))
        grid = layout.dialect.chunk_grid(chunk_shape, shape)
        shards = self.shards(path, layout, grid.grid_shape(shape))
        # The preferred form comes first: there are alternatives for chunk order, and for a fill value that was not requested.
        refused: NotRepresentable | None = None
        for first, fill in itertools.product((transpose, ()) if transpose else ((),), fills):
            metadata = ArrayMetadata(
                shape=shape,
                data_type=data_type,
                chunk_grid=grid,
                chunk_key_encoding=self.chunk_keys(layout, separator),
                fill_value=fill,
                codecs=self.codecs(layout, data_type, first),
                shards=shards,
            )
            node = ArrayNode(path=path, dialect=layout.dialect.name, metadata=metadata, chunk_prefix=layout.chunk_prefix(path))
            # Checked now, not when the chunks are stored. The metadata that the layout reads back counts.
            try:
                parsed = layout.parse(path, layout.format(node))
            except NotRepresentable as error:
                # The last form asks for least, so its refusal has the best reason.
                refused = error
                continue
            if not isinstance(parsed, ArrayNode) or parsed.metadata.data_type != data_type:
                raise NotRepresentable(f"{path}: {layout.dialect.name} cannot represent an array of {data_type.name}", key=path)
            return parsed
        assert refused is not None
        raise refused

    def shards(self, path: NodePath, layout: Layout, grid_shape: Shape) -> tuple[ShardSpec, ...]:
        """Return the shards of a new array at ``path`` with this grid: at most as many chunks along a dimension as the grid has.

        Raises `NotRepresentable` if ``layout`` has no shards.
        """
        if len(self._shards) not in (1, len(grid_shape)) or not grid_shape:
            # No shards requested, or for arrays of another number of dimensions.
            return ()
        asked = self._shards * len(grid_shape) if len(self._shards) == 1 else self._shards
        counts = tuple(max(1, min(count, extent)) for count, extent in zip(asked, grid_shape, strict=True))
        if (index_codecs := layout.dialect.new_index_codecs) is None:
            raise NotRepresentable(f"{path}: {layout.dialect.name} has no shards, but new_shards is set", key=path)
        return (ShardSpec(counts, index_codecs=index_codecs),)

    def codecs(self, layout: Layout, data_type: DataType, first: Sequence[CodecSpec] = ()) -> tuple[CodecSpec, ...]:
        """Return the codec chain of a new array of ``data_type``, after the codecs ``first``.

        Raises `MetadataError`, `MetadataUnsupported`.
        """
        codecs = layout.dialect.new_codecs if self._codecs is None else self._codecs
        # The array -> bytes codec of types without a fixed size follows from the type.
        serializer = () if data_type.is_variable else _serializer(codecs)
        return CodecChain.build((*first, *serializer, *codecs), data_type).specs

    def chunk_keys(self, layout: Layout, separator: str | None = None) -> ChunkKeyEncoding:
        """Return the chunk key encoding of a new array; ``separator`` overrides that of the mount."""
        separator = separator or self._separator
        return layout.dialect.chunk_key_encoding if separator is None else layout.dialect.chunk_keys(separator)

    def _chunk_shape(self, shape: Shape, itemsize: int) -> Shape:
        """Return the configured lengths if they fit the dimensions, at most the array's; else a guess."""
        match self._chunks:
            case "auto":
                return guess_chunks(shape, itemsize)
            case "none":
                chosen = shape
            case (length,):
                chosen = (length,) * len(shape)
            case lengths if len(lengths) == len(shape):
                chosen = tuple(lengths)  # type: ignore[arg-type]
            case _:
                # Configured for arrays of another number of dimensions.
                return guess_chunks(shape, itemsize)
        return tuple(max(1, min(length, extent)) for length, extent in zip(chosen, shape, strict=True))


def _parse_chunks(text: str) -> str | tuple[int, ...]:
    text = text.strip().lower()
    if text in (_AUTO, _NONE):
        return text
    return _lengths("new_chunks", "auto, none, or lengths such as 512x512", text)


def _parse_shards(text: str) -> tuple[int, ...]:
    text = text.strip().lower()
    return () if text == _NONE else _lengths("new_shards", "none, or numbers of chunks such as 8x8", text)


def _lengths(option: str, expected: str, text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d{0,17}([x,:][1-9]\d{0,17})*", text):
        raise UsageError(f"{option}: expected {expected}, not {text!r}")
    return tuple(int(length) for length in re.split("[x,:]", text))


def _parse_codecs(text: str) -> tuple[CodecSpec, ...]:
    if text.strip().lower() == _NONE:
        return ()
    if not text.strip():
        # In a script, an unset variable: without its codecs, new arrays would be stored uncompressed.
        raise UsageError(f"new_codecs: expected auto, none, or a chain such as zstd+crc32c, not {text!r}")
    specs = []
    for part in text.split("+"):
        name, *options = part.strip().split(":")
        configuration: dict[str, Any] = {}
        for option in options:
            key, equals, value = option.partition("=")
            if not key or not equals:
                raise UsageError(f"new_codecs: {part!r}: expected NAME:option=value, not {option!r}")
            configuration[key] = _value(value)
        try:
            specs.append(lookup.with_defaults(CodecSpec(name, configuration)))
        except ZarrfsError as error:
            raise UsageError(f"new_codecs: {text!r}: {error}") from error
    refused: ZarrfsError | None = None
    for data_type in _TYPES:
        try:
            CodecChain.build((*_serializer(specs), *specs), data_type)
        except ZarrfsError as error:
            refused = refused or error
        else:
            return tuple(specs)
    raise UsageError(f"new_codecs: {text!r}: {refused}") from refused


def _serializer(codecs: Sequence[CodecSpec]) -> tuple[CodecSpec, ...]:
    """Return `bytes`, unless ``codecs`` contain an array -> bytes codec. Raises `MetadataUnsupported`."""
    if any(issubclass(lookup.class_of(spec), ArrayBytesCodec) for spec in codecs if spec.name not in Bytes.names):
        return ()
    return (CodecSpec("bytes", {"endian": "little"}),)


def _value(text: str) -> Any:
    """Return a number, a boolean or null parsed as JSON; else the text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, dict | list) else value
