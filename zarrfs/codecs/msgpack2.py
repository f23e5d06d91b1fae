"""``numcodecs.msgpack2``: the elements as MessagePack.

Source: numcodecs ``msgpack2``; the MessagePack specification. `zarrfs.codecs.object_text` has the format.

    {"id": "msgpack2", "raw": false, "use_bin_type": true, "use_single_float": false}

Elements are JSON values: byte strings, times and other extensions, and maps with keys other than text are refused, because no view could
represent them. A first pass over the data creates no objects, so that no stated length exceeds the actual data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Self

from zarrfs.buffers import Buffer
from zarrfs.codecs.base import ChunkSpec
from zarrfs.codecs.configuration import boolean, only, short
from zarrfs.codecs.object_text import MAX_VALUES, ObjectTextCodec, packed, unpacked
from zarrfs.codecs.streams import Output
from zarrfs.errors import ChunkDecodeError, ChunkEncodeError, MetadataUnsupported, TooLarge
from zarrfs.model.codec_spec import CodecSpec

_DEFAULTS: dict[str, Any] = {"raw": False, "use_bin_type": True, "use_single_float": False}
_PIECE_NBYTES = 64 * 1024
# Limits of one element, if elements are created one after the other.
_ALONE_NBYTES = 24 << 20
_ALONE_VALUES = 2**19


@dataclass(frozen=True, slots=True)
class Msgpack2(ObjectTextCodec):
    """``use_bin_type`` and ``use_single_float`` affect only writing."""

    names: ClassVar[tuple[str, ...]] = ("numcodecs.msgpack2",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("msgpack2",)
    codec_name: ClassVar[str] = "msgpack2"
    libraries: ClassVar[tuple[str, ...]] = ("msgpack",)
    defaults: ClassVar[Mapping[str, Any]] = _DEFAULTS
    examples: ClassVar[tuple[CodecSpec, ...]] = tuple(
        CodecSpec("numcodecs.msgpack2", {**_DEFAULTS, "use_bin_type": each}) for each in (True, False)
    )

    use_bin_type: bool
    use_single_float: bool

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        only(spec, *_DEFAULTS)
        if boolean(spec, "raw", False):
            raise MetadataUnsupported("codec msgpack2: 'raw' reads text as byte strings, which JSON cannot represent")
        return cls(boolean(spec, "use_bin_type", True), boolean(spec, "use_single_float", False))

    def encoded(self, elements: list[Any], shape: tuple[int, ...]) -> bytes:
        import msgpack

        try:
            data: bytes = msgpack.packb(
                packed(elements, shape), use_bin_type=self.use_bin_type, use_single_float=self.use_single_float
            )
        except _library_errors() as error:
            raise ChunkEncodeError(f"msgpack2: {error}") from error
        return data

    def each(self, data: Buffer, spec: ChunkSpec) -> Iterator[Any]:
        import msgpack

        left = [0]
        unpacker = msgpack.Unpacker(
            _Reader(data),
            read_size=_PIECE_NBYTES,
            max_buffer_size=_ALONE_NBYTES,
            raw=False,
            strict_map_key=True,
            max_array_len=_ALONE_VALUES,
            max_map_len=_ALONE_VALUES // 2,
            max_bin_len=0,
            max_ext_len=0,
            list_hook=lambda found: _counted(left, found, len(found)),
            object_pairs_hook=lambda pairs: _counted_map(left, pairs),
        )

        def listed(shape: tuple[int, ...], more: int) -> Iterator[Any]:
            count = unpacker.read_array_header()
            if count != shape[0] + more:
                raise ChunkDecodeError(f"msgpack2: {count - more} elements instead of {shape[0]} along a dimension")
            for _ in range(shape[0]):
                if len(shape) > 1:
                    yield from listed(shape[1:], 0)
                else:
                    left[0] = _ALONE_VALUES
                    yield unpacker.unpack()

        try:
            yield from listed(spec.shape, 2)
            left[0] = _ALONE_VALUES
            if not isinstance(unpacker.unpack(), str) or math.prod(unpacker.unpack()) != spec.size:
                raise ChunkDecodeError("msgpack2: not a list of elements followed by type and shape")
            if unpacker.tell() != memoryview(data).nbytes:
                raise ChunkDecodeError(f"msgpack2: {memoryview(data).nbytes - unpacker.tell()} trailing bytes after the elements")
        except msgpack.BufferFull as error:
            raise TooLarge(f"msgpack2: an element exceeds the memory limit of {_ALONE_NBYTES} bytes") from error
        except _library_errors() as error:
            raise ChunkDecodeError(f"msgpack2: {str(error) or type(error).__name__}") from error

    def put(self, elements: Iterable[Any], shape: tuple[int, ...], output: Output) -> None:
        import msgpack

        packer = msgpack.Packer(use_bin_type=self.use_bin_type, use_single_float=self.use_single_float)
        values = iter(elements)

        def add(shape: tuple[int, ...], more: int) -> None:
            output.add(packer.pack_array_header(shape[0] + more))
            for _ in range(shape[0]):
                if len(shape) > 1:
                    add(shape[1:], 0)
                else:
                    output.add(packer.pack(next(values)))

        try:
            add(shape, 2)
            output.add(packer.pack("|O") + packer.pack(list(shape)))
        except _library_errors() as error:
            raise ChunkEncodeError(f"msgpack2: {error}") from error

    def decoded(self, data: Buffer, size: int) -> list[Any]:
        import msgpack

        nbytes = memoryview(data).nbytes
        most = min(nbytes, MAX_VALUES)
        left = [MAX_VALUES]
        try:
            _walk(data, nbytes)
            items = msgpack.unpackb(
                data,
                raw=False,
                strict_map_key=True,
                max_str_len=nbytes,
                max_bin_len=0,
                max_ext_len=0,
                max_array_len=most,
                max_map_len=most // 2,
                list_hook=lambda found: _counted(left, found, len(found)),
                object_pairs_hook=lambda pairs: _counted_map(left, pairs),
            )
        except _library_errors() as error:
            raise ChunkDecodeError(f"msgpack2: {str(error) or type(error).__name__}") from error
        return unpacked("msgpack2", items, size)


class _Reader:
    """Bytes as a file: the library copies its input."""

    def __init__(self, data: Buffer) -> None:
        self._left = memoryview(data).cast("B")

    def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes."""
        piece, self._left = bytes(self._left[:size]), self._left[size:]
        return piece


@cache
def _library_errors() -> tuple[type[Exception], ...]:
    import msgpack

    return (ValueError, TypeError, RecursionError, OverflowError, MemoryError, msgpack.UnpackException)


def _walk(data: Buffer, nbytes: int) -> None:
    """Skip through ``data`` without creating objects: before 1.2.4 the library allocates lists of the stated length first."""
    import msgpack

    most = max(nbytes, _PIECE_NBYTES)
    walker = msgpack.Unpacker(_Reader(data), read_size=_PIECE_NBYTES, max_buffer_size=most, strict_map_key=False)
    walker.skip()
    if walker.tell() != nbytes:
        raise ValueError(f"{nbytes - walker.tell()} trailing bytes after the elements")


def _counted(left: list[int], found: Any, count: int) -> Any:
    """Return ``found``, which contains ``count`` values, and count these."""
    left[0] -= count
    if left[0] < 0:
        raise ValueError(f"data exceeds the limit of {MAX_VALUES} values")
    return found


def _counted_map(left: list[int], pairs: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """Return the map of ``pairs``, and count its keys and values."""
    # Before 1.2 it is a generator if the library has no C code.
    found = list(pairs)
    for name, _ in found:
        if not isinstance(name, str):
            raise ValueError(f"key {short(name)} is not text")
    return dict(_counted(left, found, 2 * len(found)))


PLUGIN = Msgpack2
