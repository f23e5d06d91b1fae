"""``blosc``: the Blosc 1 container, with any of its compressors.

Source: v3 final, codec ``blosc`` 1.0; numcodecs ``blosc``; c-blosc README_CHUNK_FORMAT (the 16 bytes of header).

    {"name": "blosc", "configuration": {"typesize": 4, "cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0}}
    {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}

v2 has no ``typesize``: numcodecs uses the item size of its input array, and its shuffle -1 means bit shuffle for items of one byte and
byte shuffle for others. Between the layouts these are absent members, as in zarr-python; `Blosc.complete` fills them in.

Decoding trusts numcodecs' c-blosc inside the container, and no part of the header that c-blosc cannot check itself, as it does not get
the length of the stored value. ``snappy`` occurs in old stores; numcodecs' build lacks it, that of imagecodecs has it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np

from zarrfs.buffers import Buffer
from zarrfs.codecs import scratch
from zarrfs.codecs.base import BytesBytesCodec, Dtype, numcodecs_members, translated
from zarrfs.codecs.configuration import choice, integer, only, short
from zarrfs.errors import ChunkDecodeError, ChunkEncodeError, MetadataError, MetadataUnsupported, TooLarge
from zarrfs.memory import spill
from zarrfs.model.codec_spec import CodecSpec

_COMPRESSORS = ("lz4", "lz4hc", "blosclz", "zstd", "snappy", "zlib")
_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
_HEADER = struct.Struct("<4B3I")
_SNAPPY_FORMAT = 2
_MAX_NBYTES = 2**31 - 1 - _HEADER.size
# The library decodes a block into its own memory; its encoder creates blocks of a few megabytes at most, unless configured otherwise.
_MAX_BLOCK_NBYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Blosc(BytesBytesCodec):
    """``typesize`` in bytes; ``shuffle`` 0 none, 1 bytes, 2 bits; ``blocksize`` in bytes, 0 for c-blosc's own choice."""

    names: ClassVar[tuple[str, ...]] = ("blosc",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("blosc",)
    examples: ClassVar[tuple[CodecSpec, ...]] = (
        *(
            CodecSpec("blosc", {"typesize": 4, "cname": cname, "clevel": 5, "shuffle": shuffle, "blocksize": 0})
            for cname in ("lz4", "lz4hc", "blosclz", "zstd", "zlib")
            for shuffle in ("noshuffle", "shuffle", "bitshuffle")
        ),
        CodecSpec("blosc", {"typesize": 4, "cname": "lz4", "clevel": 0, "shuffle": "noshuffle", "blocksize": 64}),
    )

    libraries: ClassVar[tuple[str, ...]] = ("numcodecs.blosc",)

    cname: str
    clevel: int
    shuffle: int
    blocksize: int
    typesize: int

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        only(spec, "typesize", "cname", "clevel", "shuffle", "blocksize")
        cname = choice(spec, "cname", _COMPRESSORS)
        if cname == "snappy" and importlib.util.find_spec("imagecodecs") is None:
            raise MetadataUnsupported("codec blosc: snappy needs the package imagecodecs (pip install 'zarrfs[snappy]')")
        return cls(
            cname=cname,
            clevel=integer(spec, "clevel", 0, 9),
            shuffle=_SHUFFLES.index(choice(spec, "shuffle", _SHUFFLES)),
            blocksize=integer(spec, "blocksize", 0, 2**31 - 1, 0),
            typesize=integer(spec, "typesize", 1, 2**31 - 1, 1),
        )

    @classmethod
    def complete(cls, spec: CodecSpec, dtype: Dtype) -> CodecSpec:
        config = {name: value for name, value in spec.configuration.items() if value is not None}
        shuffle = "bitshuffle" if dtype.itemsize == 1 else "shuffle"
        return CodecSpec(cls.names[0], {"typesize": dtype.itemsize, "shuffle": shuffle, "blocksize": 0, **config})

    @classmethod
    def spec_from_numcodecs(cls, config: Mapping[str, Any]) -> CodecSpec:
        members = {"cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0, **numcodecs_members(config)}
        shuffle = members.pop("shuffle")
        if type(shuffle) is not int or not -1 <= shuffle <= 2:
            raise MetadataError(f"codec blosc: shuffle must be an integer from -1 to 2, not {short(shuffle)}")
        return CodecSpec(cls.names[0], members if shuffle == -1 else {**members, "shuffle": _SHUFFLES[shuffle]})

    @classmethod
    def spec_to_numcodecs(cls, spec: CodecSpec) -> dict[str, Any]:
        config = spec.configuration
        shuffle = config.get("shuffle")
        return {
            "id": cls.numcodecs_ids[0],
            "blocksize": config.get("blocksize", 0),
            "clevel": config.get("clevel", 5),
            "cname": config.get("cname", "lz4"),
            "shuffle": _SHUFFLES.index(shuffle) if shuffle in _SHUFFLES else -1,
        }

    def encode(self, data: Buffer) -> Buffer:
        data = memoryview(data)
        if data.nbytes > _MAX_NBYTES:
            raise ChunkEncodeError(f"blosc: {data.nbytes} bytes exceed the limit of one container ({_MAX_NBYTES})")
        with translated("blosc", ChunkEncodeError, ValueError, RuntimeError):
            if self.cname == "snappy":
                return self._encode_snappy(data)
            if spill.is_large(data.nbytes):
                return self._encode_large(data)
            encoded: bytes = _numcodecs().compress(
                data, self.cname.encode(), self.clevel, self.shuffle, self.blocksize, self.typesize
            )
            return encoded

    def decode(self, data: Buffer, limit: int, out: memoryview | None = None) -> Buffer:
        data = memoryview(data)
        if data.nbytes < _HEADER.size:
            raise ChunkDecodeError(f"blosc: {data.nbytes} bytes are too few for a header")
        _, _, flags, typesize, nbytes, blocksize, cbytes = _HEADER.unpack_from(data)
        if nbytes > limit:
            raise ChunkDecodeError(f"blosc: decoded size of {nbytes} bytes exceeds the limit of {limit}")
        if cbytes != data.nbytes:
            raise ChunkDecodeError(f"blosc: size in the header is {cbytes} bytes, stored are {data.nbytes}")
        if nbytes == 0:
            return b""
        if typesize == 0 or blocksize == 0:
            raise ChunkDecodeError("blosc: damaged header")
        if flags >> 5 == _SNAPPY_FORMAT:
            return _decode_snappy(data)
        if min(blocksize, nbytes) > _MAX_BLOCK_NBYTES:
            raise TooLarge(f"blosc: block size of {blocksize} bytes exceeds the limit of {_MAX_BLOCK_NBYTES}")
        with translated("blosc", ChunkDecodeError, ValueError, RuntimeError), scratch.alone(2 * min(blocksize, nbytes)):
            if out is None and not spill.is_large(nbytes):
                decoded: bytes = _numcodecs().decompress(data)
                return decoded
            target = spill.buffer(nbytes) if out is None else out[:nbytes]
            _numcodecs().decompress(data, target)
            return target

    def _encode_large(self, data: memoryview) -> memoryview:
        """Encode as numcodecs does, into a file: numcodecs creates two copies of its input."""
        source, target = np.frombuffer(data, np.uint8), np.frombuffer(spill.buffer(data.nbytes + _HEADER.size), np.uint8)
        shuffle = self.shuffle
        if shuffle < 0:
            shuffle = 2 if self.typesize == 1 else 1
        nbytes = _library().blosc_compress_ctx(
            ctypes.c_int(self.clevel),
            ctypes.c_int(shuffle),
            ctypes.c_size_t(self.typesize),
            ctypes.c_size_t(source.nbytes),
            ctypes.c_void_p(source.ctypes.data),
            ctypes.c_void_p(target.ctypes.data),
            ctypes.c_size_t(target.nbytes),
            self.cname.encode(),
            ctypes.c_size_t(self.blocksize),
            ctypes.c_int(1),
        )
        if nbytes <= 0:
            raise ChunkEncodeError(f"blosc: error {nbytes} during compression")
        return target[:nbytes].data

    def _encode_snappy(self, data: memoryview) -> bytes:
        import imagecodecs

        encoded = imagecodecs.blosc_encode(
            bytes(data),
            self.clevel,
            compressor="snappy",
            shuffle=self.shuffle,
            typesize=self.typesize,
            blocksize=self.blocksize or None,
            numthreads=1,
        )
        return bytes(encoded)


@cache
def _numcodecs() -> Any:
    from numcodecs import blosc

    # The daemon decodes in its own threads. By default numcodecs would use c-blosc's global pool in calls from the main thread, under a
    # lock.
    blosc.use_threads = False
    return blosc


@cache
def _library() -> ctypes.CDLL:
    """Return the c-blosc bundled with numcodecs."""
    return ctypes.CDLL(_numcodecs().__file__)


def _decode_snappy(data: memoryview) -> bytes:
    try:
        import imagecodecs
    except ModuleNotFoundError as error:
        raise ChunkDecodeError("blosc: compressed with snappy, which needs the package imagecodecs") from error
    with translated("blosc", ChunkDecodeError, ValueError, RuntimeError):
        return bytes(imagecodecs.blosc_decode(bytes(data), numthreads=1))


PLUGIN = Blosc
