"""What a new array is stored as where the program that makes it cannot say: chunk shape and codecs from the mount's options."""

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
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, check_chunk_nbytes
from zarrfs.model.shards import ShardSpec
from zarrfs.model.variable_fill import empty

# Types that codecs are tried with before there is an array: one of them has to do.
_TYPES = tuple(from_numpy(np.dtype(name)) for name in ("<f4", "<i4", "|u1", "|b1"))
_AUTO = "auto"
_NONE = "none"


class NewArrays:
    """How new arrays are chunked and encoded.

    ``chunks``: ``auto`` (as zarr-python chooses), ``none`` (one chunk), or lengths joined by ``x`` (``512x512``; one length alone counts
    for every dimension). ``codecs``: ``auto`` (those of the dialect), ``none``, or codecs joined by ``+``, each a name and its options
    joined by ``:`` (``gzip:level=6+crc32c``); ``bytes`` precedes them unless one of them makes bytes of elements itself. ``separator``:
    in chunk keys, ``auto`` for the dialect's. ``shards``: ``none``, or chunks along each dimension of a shard, as ``chunks``. Raises
    `UsageError` for what is not of this form or names no codec.
    """

    def __init__(self, *, chunks: str = _AUTO, codecs: str = _AUTO, separator: str = _AUTO, shards: str = _NONE) -> None:
        self._chunks = _parse_chunks(chunks)
        self._shards = () if shards.strip().lower() == _NONE else _lengths("new_shards", "none", shards.strip().lower())
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
        """A new array at ``path`` in the words of ``layout``.

        ``chunk_shape`` where the maker chose one; ``order``: ``C`` or ``F``, of the elements within a chunk, where the layout has such an
        order; ``fill_value``: one element; where nobody asked for one (None), zeros, or an undefined one where the layout cannot say
        zeros of this type; ``separator``: in chunk keys, where the maker chose one. Raises `NotRepresentable` and `MetadataError` for an
        array that the layout or the codecs cannot hold.
        """
        if order not in ("C", "F"):
            raise ValueError(f"order is 'C' or 'F', not {order!r}")
        layout.require_writable()
        chunk_shape = self._chunk_shape(shape, data_type.itemsize) if chunk_shape is None else chunk_shape
        check_chunk_nbytes(chunk_shape, data_type)
        zeros = empty(data_type) if data_type.is_variable else bytes(data_type.itemsize)
        fills = (fill_value,) if fill_value is not None else (zeros, None)
        transpose = order_codecs(order, len(shape))
        grid = layout.dialect.chunk_grid(chunk_shape, shape)
        shards = self.shards(layout, grid.grid_shape(shape))
        # What is liked best comes first: of a chunk's layout and of a fill value that nobody chose there are others that do.
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
            # Whether the layout has words for it is found out now, not when the chunks are stored. What it will read back is what counts.
            try:
                parsed = layout.parse(path, layout.format(node))
            except NotRepresentable as error:
                # Of the last of them, which asks for least, the reason tells most.
                refused = error
                continue
            if not isinstance(parsed, ArrayNode) or parsed.metadata.data_type != data_type:
                raise NotRepresentable(f"{layout.dialect.name} has no words for this array of {data_type.name}", key=path)
            return parsed
        assert refused is not None
        raise refused

    def shards(self, layout: Layout, grid_shape: Shape) -> tuple[ShardSpec, ...]:
        """How the chunks of a new array with this grid are bundled: no more of them along a dimension than there are. Raises
        `NotRepresentable` where ``layout`` has no shards."""
        if len(self._shards) not in (1, len(grid_shape)) or not grid_shape:
            # None asked for, or for arrays of another number of dimensions.
            return ()
        asked = self._shards * len(grid_shape) if len(self._shards) == 1 else self._shards
        counts = tuple(max(1, min(count, extent)) for count, extent in zip(asked, grid_shape, strict=True))
        if (index_codecs := layout.dialect.new_index_codecs) is None:
            raise NotRepresentable(f"{layout.dialect.name} has no shards: new_shards asks for some")
        return (ShardSpec(counts, index_codecs=index_codecs),)

    def codecs(self, layout: Layout, data_type: DataType, first: Sequence[CodecSpec] = ()) -> tuple[CodecSpec, ...]:
        """The chain of a new array of ``data_type``, behind the codecs ``first``. Raises `MetadataError`, `MetadataUnsupported`."""
        codecs = layout.dialect.new_codecs if self._codecs is None else self._codecs
        # What makes bytes of elements without a fixed size follows from their type.
        serializer = () if data_type.is_variable else _serializer(codecs)
        return CodecChain.build((*first, *serializer, *codecs), data_type).specs

    def chunk_keys(self, layout: Layout, separator: str | None = None) -> ChunkKeyEncoding:
        """The chunk key encoding of a new array; ``separator`` where its maker chose one."""
        separator = separator or self._separator
        return layout.dialect.chunk_key_encoding if separator is None else layout.dialect.chunk_keys(separator)

    def _chunk_shape(self, shape: Shape, itemsize: int) -> Shape:
        """The chosen lengths where there is one for each dimension, no longer than the array."""
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
                # Chosen for arrays of another number of dimensions.
                return guess_chunks(shape, itemsize)
        return tuple(max(1, min(length, extent)) for length, extent in zip(chosen, shape, strict=True))


def _parse_chunks(text: str) -> str | tuple[int, ...]:
    text = text.strip().lower()
    if text in (_AUTO, _NONE):
        return text
    return _lengths("new_chunks", "auto, none", text)


def _lengths(option: str, others: str, text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d{0,17}([x,:][1-9]\d{0,17})*", text):
        raise UsageError(f"{option}: expected {others}, or lengths such as 512x512, not {text!r}")
    return tuple(int(length) for length in re.split("[x,:]", text))


def _parse_codecs(text: str) -> tuple[CodecSpec, ...]:
    if text.strip().lower() in (_NONE, ""):
        return ()
    specs = []
    for part in text.split("+"):
        name, *options = part.strip().split(":")
        configuration: dict[str, Any] = {}
        for option in options:
            key, equals, value = option.partition("=")
            if not key or not equals:
                raise UsageError(f"new_codecs: {part!r}: expected NAME:option=value, not {option!r}")
            configuration[key] = _value(value)
        specs.append(CodecSpec(name, configuration))
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
    """`bytes`, unless one of ``codecs`` makes bytes of elements itself. Raises `MetadataUnsupported`."""
    if any(issubclass(lookup.class_of(spec), ArrayBytesCodec) for spec in codecs if spec.name not in Bytes.names):
        return ()
    return (CodecSpec("bytes", {"endian": "little"}),)


def _value(text: str) -> Any:
    """A number, a boolean or null as JSON has it; else text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, dict | list) else value
