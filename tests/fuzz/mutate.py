"""Mutations of bytes: blind ones, and others aware of the form of a document, a chunk, a shard's index or an archive.

Written here instead of taken from a library. Atheris and AFL++ mutate as blindly as `Mutator.anything`, and steer by coverage, for which
the program has to be instrumented and run alone; here hundreds of mutants are in one store, in one mount. Hypothesis draws values and
shrinks them, at some milliseconds each, and shrinking a mount is useless: a finding is named by its seed and repeated with it.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

_MOST = 1 << 20
"""Limit for the size of a mutant, unless its original is larger."""

INTEGERS = [
    0,
    1,
    2,
    7,
    8,
    127,
    128,
    255,
    256,
    2**15,
    2**16 - 1,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**40,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
]

EXTREMES: list[Any] = [
    *(n * sign for n in INTEGERS for sign in (1, -1)),
    *(None, True, False, 0.5, -0.0, 1e308, 10**30, 10**400, float("nan"), float("inf"), float("-inf")),
    *(
        "",
        "a",
        "..",
        "/",
        "../../etc/passwd",
        "\0",
        "\x1b[31m",
        "\ud800",
        "é" * 300,
        "<M8",
        "<M8[ns]",
        "|O",
        "<U1000000",
        "|V0",
        "<i3",
        ">f2",
    ),
    *(
        "NaN",
        "Infinity",
        "0x7fc00000",
        "AAAA",
        "=" * 7,
        "int64",
        "r24",
        "string",
        "zstd",
        "sharding_indexed",
        "bytes",
        "gzip",
        "2",
        "1.5",
    ),
    *(
        [],
        {},
        [[]],
        [{}],
        [None],
        [0],
        [-1],
        [2**62],
        [1] * 40,
        ["a"] * 40,
        {"": None},
        {"id": None},
        {"id": "zlib"},
        {"name": "gzip"},
    ),
    *(
        {"name": "crc32c"},
        {"name": "transpose", "configuration": {"order": [0, 0]}},
        {"name": "numcodecs.pickle"},
        {"id": "pickle"},
    ),
    *(
        [{"id": "json2"}, {"id": "vlen-utf8"}],
        [["f", "<i4"], ["f", "<i4"]],
        [["a", "<i4", [1000000]]],
        "bytes",
        {"configuration": []},
    ),
]

_TYPES = [
    *(
        "<M8",
        "<M8[ns]",
        "<M8[25s]",
        ">m8[D]",
        "<m8",
        "|O",
        "|S0",
        "|S3",
        "<U0",
        "<U2",
        "|V0",
        "|V3",
        "<f2",
        "<c8",
        "|b1",
        "<f16",
        "=i4",
        "i4",
    ),
    *([["a", "<i4"], ["b", "|V0"]], [["a", [["b", ">f8", [2, 2]]]]], [["", "<M8"]], [["a", "|O"]]),
    *(
        "bool",
        "int2",
        "int64",
        "float8_e4m3fn",
        "bfloat16",
        "complex64",
        "r8",
        "r0",
        "r7",
        "string",
        "bytes",
        "variable_length_bytes",
    ),
    *(
        {"name": "numpy.datetime64", "configuration": {"unit": unit, "scale_factor": factor}}
        for unit, factor in (("generic", 1), ("ns", 0), ("D", 2**31))
    ),
    *(
        {"name": name, "configuration": {"length_bytes": nbytes}}
        for name, nbytes in (("fixed_length_utf32", 0), ("null_terminated_bytes", 3), ("raw_bytes", 2**40))
    ),
    {"name": "structured", "configuration": {"fields": [["a", "int32"], ["a", {"name": "numpy.datetime64"}]]}},
]

LIKELY: dict[str, list[Any]] = {
    "dtype": _TYPES,
    "data_type": _TYPES,
    "fill_value": [
        0,
        1,
        -1,
        0.5,
        None,
        "",
        "NaN",
        "NaT",
        "-Infinity",
        "0x7fc00000",
        "AAAA",
        "AA==",
        [],
        [0, 0],
        {},
        [[0]],
        {"a": 0},
        2**63,
        2**64,
        True,
    ],
    "order": ["C", "F", "A", None, [1, 0], [0, 0], [5]],
    "level": [-1, 0, 1, 9, 10, 2**31, None, "1"],
    "chunk_shape": [[], [0], [1], [1, 1], [2**31, 2**31], [2**62], [[1, 2]], [[2, 0]], [[[1, 10**9]]]],
    "separator": [".", "/", "", "..", "\0", None],
    "compressor": [None, {"id": "zstd", "level": 1}, {"id": "blosc"}, {"id": "gzip"}, {"id": "vlen-utf8"}, {"id": "json2"}],
    "filters": [
        None,
        [],
        [{"id": "vlen-utf8"}],
        [{"id": "delta", "dtype": "<M8"}],
        [{"id": "astype", "encode_dtype": "|O", "decode_dtype": "<i4"}],
    ],
    "storage_transformers": [[], [{}], [{"name": "indexed", "configuration": {}}], None, {}],
}
"""Values that a parser may accept, by the member's name: faults often need two members that do not match."""
LIKELY |= {"chunks": LIKELY["chunk_shape"], "shape": LIKELY["chunk_shape"], "dimension_separator": LIKELY["separator"]}


class Mutator:
    """Mutants of given data, the same ones for the same ``seed``. ``donors`` are values to splice from."""

    def __init__(self, seed: str, donors: Sequence[bytes] = ()) -> None:
        self.random = random.Random(seed)
        self._donors = donors

    def document(self, data: bytes) -> bytes:
        """Return a mutant of a JSON document, usually still JSON."""
        if self.random.random() < 0.2:
            return self.anything(data)
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return self.anything(data)
        for _ in range(self._few() + self.random.randrange(2)):
            value = self._json(value)
        # Lone surrogates have to be escaped, and infinities are as Python's writer spells them.
        text = json.dumps(value)
        if self.random.random() < 0.1:
            text = self._doubled_member(text)
        return text.encode()

    def chunk(self, data: bytes) -> bytes:
        """Return a mutant of an encoded chunk: sizes are in its header."""
        return self._number(data, min(len(data), 40)) if self.random.random() < 0.4 else self.anything(data)

    def index(self, data: bytes, begin: int, end: int) -> bytes:
        """Return a mutant of a shard whose index is ``data[begin:end]``: only the index is changed."""
        return data[:begin] + self._index(data[begin:end], len(data)) + data[end:]

    def zip(self, data: bytes) -> bytes:
        """Return a mutant of a zip file, usually with changed fields of its headers."""
        found = [at for mark in (b"PK\1\2", b"PK\3\4", b"PK\5\6", b"PK\6\6", b"PK\6\7") for at in _all(data, mark)]
        if not found or self.random.random() < 0.3:
            return self.anything(data)
        for _ in range(self._few()):
            at = self.random.choice(found)
            part = self._number(data[at + 4 : at + 60], 56)
            data = data[: at + 4] + part + data[at + 60 :]
        return data

    def anything(self, data: bytes) -> bytes:
        """Return a mutant of any bytes."""
        ways = (
            self._flip,
            self._flip,
            self._set,
            self._insert,
            self._cut,
            self._truncate,
            self._splice,
            self._repeat,
            self._whole_number,
        )
        for _ in range(self._few()):
            data = self.random.choice(ways)(data)
        return data[: len(data) + _MOST]

    # --- bytes ------------------------------------------------------------------------------------------------------------------

    def _few(self) -> int:
        return self.random.choice((1, 1, 1, 1, 2, 3, 8))

    def _place(self, data: bytes) -> int:
        return self.random.randrange(len(data) + 1)

    def _flip(self, data: bytes) -> bytes:
        if not data:
            return b"\0"
        at = self.random.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << self.random.randrange(8)]) + data[at + 1 :]

    def _set(self, data: bytes) -> bytes:
        at, length = self._place(data), self.random.choice((1, 2, 4, 8, 100))
        return data[:at] + bytes([self.random.choice((0, 1, 0x7F, 0x80, 0xFF))]) * length + data[at + length :]

    def _insert(self, data: bytes) -> bytes:
        at = self._place(data)
        return data[:at] + self.random.randbytes(self.random.choice((1, 2, 4, 16, 1000))) + data[at:]

    def _cut(self, data: bytes) -> bytes:
        at = self._place(data)
        return data[:at] + data[at + self.random.choice((1, 2, 4, 16, 1000)) :]

    def _truncate(self, data: bytes) -> bytes:
        return data[: self._place(data)]

    def _splice(self, data: bytes) -> bytes:
        donor = self.random.choice(self._donors) if self._donors else data
        begin, at = self._place(donor), self._place(data)
        piece = donor[begin : begin + self.random.choice((4, 32, 1000, 100_000))]
        return data[:at] + piece + data[at + self.random.choice((0, len(piece))) :]

    def _repeat(self, data: bytes) -> bytes:
        begin = self._place(data)
        block = data[begin : begin + self.random.choice((1, 8, 64, 4096))]
        return data[:begin] + block * min(self.random.choice((2, 3, 100, 10_000)), 1 + _MOST // max(1, len(block))) + data[begin:]

    def _whole_number(self, data: bytes) -> bytes:
        return self._number(data, len(data))

    def _number(self, data: bytes, within: int) -> bytes:
        """Return ``data`` with an integer in its first bytes, of some size and either order, replaced by another one."""
        nbytes = self.random.choice((1, 2, 4, 8))
        if within < nbytes or len(data) < nbytes:
            return self._flip(data)
        at = self.random.randrange(min(within, len(data)) - nbytes + 1)
        order = self.random.choice(("little", "big"))
        old = int.from_bytes(data[at : at + nbytes], order)
        new = self.random.choice((self.random.choice(INTEGERS), old + 1, old - 1, old * 2, len(data), len(data) - at))
        return data[:at] + (new % 256**nbytes).to_bytes(nbytes, order) + data[at + nbytes :]

    def _index(self, index: bytes, nbytes: int) -> bytes:
        entries = len(index) // 16
        if not entries or self.random.random() < 0.3:
            way: Callable[[bytes], bytes] = self.random.choice((self._flip, self._set, self._whole_number))
            return way(index)[: len(index)].ljust(len(index), b"\0")
        at = 16 * self.random.randrange(entries)
        offset, size = struct.unpack_from("<2Q", index, at)
        other = struct.unpack_from("<2Q", index, 16 * self.random.randrange(entries))
        pairs = [
            other,
            (offset + 1, size),
            (offset, size + 1),
            (offset, nbytes),
            (nbytes, size),
            (2**64 - 1, size),
            (offset, 2**64 - 1),
            (2**64 - 1,) * 2,
            (2**64 - size, size),
            (0, 0),
            (offset, 0),
            (self.random.choice(INTEGERS), self.random.choice(INTEGERS)),
        ]
        pair = self.random.choice(pairs)
        return index[:at] + struct.pack("<2Q", *(each % 2**64 for each in pair)) + index[at + 16 :]

    # --- JSON -------------------------------------------------------------------------------------------------------------------

    def _json(self, value: Any) -> Any:
        """Return ``value`` with a part of it changed."""
        if isinstance(value, dict) and value and self.random.random() < 0.9:
            name = self.random.choice(list(value))
            if name in LIKELY and self.random.random() < 0.5:
                return value | {name: self.random.choice(LIKELY[name])}
            match self.random.randrange(10):
                case 0:
                    return {each: value[each] for each in value if each != name}
                case 1:
                    return {(self._name(each) if each == name else each): value[each] for each in value}
                case 2:
                    return value | {self.random.choice(list(value)): value[name]}
                case 3:
                    return value | {self._name(name): self.random.choice(EXTREMES)}
                case _:
                    return value | {name: self._json(value[name])}
        if isinstance(value, list) and value and self.random.random() < 0.9:
            at = self.random.randrange(len(value))
            match self.random.randrange(6):
                case 0:
                    return value[:at] + value[at + 1 :]
                case 1:
                    return value[:at] + value[at : at + 1] * self.random.choice((2, 3, 40)) + value[at + 1 :]
                case 2:
                    return value[::-1]
                case _:
                    return [*value[:at], self._json(value[at]), *value[at + 1 :]]
        if isinstance(value, int) and not isinstance(value, bool) and self.random.random() < 0.5:
            return self.random.choice((value + 1, value - 1, -value, value * 2, 0.5, str(value), [value]))
        if isinstance(value, str) and value and self.random.random() < 0.4:
            at = self.random.randrange(len(value))
            return self.random.choice(
                (value[:at], value[at:], value * 2, value[:at] + "\ud800" + value[at:], value.upper(), [value], {"name": value})
            )
        return self.random.choice(EXTREMES)

    def _name(self, name: str) -> str:
        return self.random.choice(
            (name + "_", name.upper(), "", "__proto__", "zarrfs", "_ARRAY_DIMENSIONS", "must_understand", "a" * 5000)
        )

    def _doubled_member(self, text: str) -> str:
        """Return the document with its first member twice: readers may disagree on which one counts."""
        return text.replace("{", '{"zarr_format": 3, "shape": [-1], ', 1) if text.startswith("{") and len(text) > 2 else text


def _all(data: bytes, mark: bytes) -> list[int]:
    found, at = [], data.find(mark)
    while at >= 0 and len(found) < 1000:
        found.append(at)
        at = data.find(mark, at + 1)
    return found
