"""Damaged metadata documents: those of ``tests/cases``, each with one or several unspecified values.

Seeded, so that a mutation with a finding can be reproduced.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.support.cases import CASES, cases

_LARGEST = 64 * 1024
_DEEP: Any = "deep"
for _ in range(50):
    _DEEP = [_DEEP]

ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    1.5,
    -0.0,
    2**31,
    2**53 + 1,
    2**62,
    2**63,
    2**64,
    -(2**63),
    10**30,
    10**400,
    1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    "a",
    "\0",
    "\x1b[2J",
    "\udc9b",
    "\ud800",
    "/",
    "..",
    "a/b",
    "NaN",
    "Infinity",
    "0x7fc00001",
    "x" * 300,
    "é",
    "<M8",
    "<m8[25s]",
    "<M8[ns]",
    "|O",
    "|S0",
    "<U0",
    "<U536870912",
    "|V0",
    "|V2147483647",
    "|b1",
    "<f2",
    ">c16",
    "<i3",
    "!i4",
    "r8",
    "r1",
    "r18446744073709551616",
    "gzip",
    "bytes",
    "transpose",
    "sharding_indexed",
    "pickle",
    [],
    [[]],
    [None],
    [0],
    [-1],
    [2**62, 2**62],
    [1.5],
    ["a", 1],
    [["a", "<i4"]],
    [["a", "<M8"], ["b", "|O"]],
    [["a", "<i4"], ["a", "<i4"]],
    [["", "<i4", [2, 0]]],
    [["a", [["b", "<f8", [10**6]]]]],
    [["a", "<i4", [-1]]],
    _DEEP,
    {},
    {"": None},
    {"id": None},
    {"id": "delta"},
    {"id": "zlib", "level": 10**9},
    {"id": "blosc", "blocksize": -(2**70), "shuffle": 9},
    {"id": "fixedscaleoffset", "dtype": "<M8", "scale": "x", "offset": None},
    {"id": "astype", "encode_dtype": "|O", "decode_dtype": None},
    {"id": "categorize", "labels": [1, None], "dtype": "|O"},
    {"id": "quantize", "digits": 10**6, "dtype": "<f8"},
    {"name": None},
    {"name": "bytes", "configuration": None},
    {"name": "bytes", "configuration": {"endian": None}},
    {"name": "transpose", "configuration": {"order": [0, 0]}},
    {"name": "regular", "configuration": {"chunk_shape": [0]}},
    {"name": "v2", "configuration": {"separator": None}},
    {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 0}},
    {"name": "struct", "configuration": {"fields": [{"name": "a", "data_type": {"name": "struct", "configuration": {}}}]}},
    {"configuration": {}, "name": "sharding_indexed"},
    {
        "name": "sharding_indexed",
        "configuration": {"chunk_shape": [1], "codecs": [], "index_codecs": [{"name": "sharding_indexed", "configuration": {}}]},
    },
)
"""Values that no member should have."""


@dataclass(frozen=True)
class Store:
    """The documents of a case, and the chunks that are short."""

    name: str
    values: Mapping[str, bytes]

    @property
    def documents(self) -> list[str]:
        """The keys of JSON documents."""
        return [key for key, value in self.values.items() if _json(value) is not None]


@cache
def stores() -> tuple[Store, ...]:
    """Return every case with short documents."""
    found = []
    for layout in sorted(folder.name for folder in CASES.iterdir() if folder.is_dir()):
        for case in cases(layout):
            if case.manifest["store_format"] == "directory":
                values = {key: value for key, value in case.values.items() if len(value) <= _LARGEST}
                store = Store(case.name, values)
                if store.documents:
                    found.append(store)
    return tuple(found)


def mutated(seed: int) -> tuple[str, str, dict[str, bytes]]:
    """Return the store for ``seed``: the case's name, the key of the changed document, and all values."""
    rng = random.Random(seed)
    store = rng.choice(stores())
    # Documents at the root concern every node.
    at_root = [key for key in store.documents if "/" not in key]
    key = rng.choice(at_root if at_root and rng.random() < 0.3 else store.documents)
    return store.name, key, dict(store.values) | {key: _mutation(store.values[key], rng)}


def _mutation(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.1:
        return _torn(data, rng)
    document = copy.deepcopy(_json(data))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        document = _changed(document, rng)
    return json.dumps(document).encode()


def _torn(data: bytes, rng: random.Random) -> bytes:
    """Return the bytes with some of them changed, removed or repeated."""
    place = rng.randrange(len(data))
    return (
        data[:place]
        + rng.choice((b"", b"\0", b"\x9b", b"\xff", b'"', b"{", data[: rng.randrange(40)]))
        + data[place + rng.randrange(3) :]
    )


def _changed(document: Any, rng: random.Random) -> Any:
    """Return ``document`` with one value replaced, removed, wrapped, or moved to the position of another one."""
    places = list(_places(document))
    if not places:
        return copy.deepcopy(rng.choice(ODD))
    within, name = rng.choice(places)
    match rng.randrange(8):
        case 0:
            del within[name]
        case 1:
            within[name] = [within[name]]
        case 2:
            within[name] = {"name": within[name], "configuration": {}}
        case 3:
            other, other_name = rng.choice(places)
            within[name] = copy.deepcopy(other[other_name])
        case 4 if isinstance(within, dict):
            within[rng.choice(("", "x", "\ud800", "must_understand", "id", "extensions"))] = copy.deepcopy(rng.choice(ODD))
        case 5 if isinstance(within, list):
            within.extend([copy.deepcopy(within[name])] * rng.choice((1, 3, 40)))
        case _:
            within[name] = copy.deepcopy(rng.choice(ODD))
    return document


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every member and element, as its container and its key there."""
    if isinstance(value, dict):
        for name in value:
            yield value, name
            yield from _places(value[name])
    elif isinstance(value, list):
        for n in range(len(value)):
            yield value, n
            yield from _places(value[n])


def _json(data: bytes) -> Any:
    try:
        value = json.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
