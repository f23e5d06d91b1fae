"""Codecs of elements without a fixed size: compared with numcodecs both ways, with untrusted data, and in bounded memory."""

from __future__ import annotations

import itertools
import json
import struct
import subprocess
import sys
import textwrap
from typing import Any

import msgpack
import numcodecs
import numcodecs.registry
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codecs.test_cases import metadata_of
from tests.support.cases import Case, cases
from tests.support.codecs import of_objects, same
from tests.support.comparing import expected_objects, is_object
from tests.support.length import unhurried
from zarrfs.arrays.filling import fill
from zarrfs.buffers import NDArray
from zarrfs.codecs import lookup
from zarrfs.codecs.chain import CodecChain
from zarrfs.errors import ChunkDecodeError, ChunkEncodeError, MetadataError, MetadataUnsupported
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import MAX_VARIABLE_NBYTES, OBJECT, STRING, VARIABLE_LENGTH_BYTES, DataType

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)


def chain_of(data_type: DataType, config: dict[str, Any], *more: CodecSpec) -> CodecChain:
    # As in a document: numcodecs has tuples where JSON has lists.
    return CodecChain.build((lookup.from_numcodecs(json.loads(json.dumps(config))), *more), data_type)


def plain_lists(chunk: NDArray) -> NDArray:
    return of_objects([each.tolist() if isinstance(each, np.ndarray) else each for each in chunk.reshape(-1)], chunk.shape)


KINDS: list[tuple[str, DataType, dict[str, Any], st.SearchStrategy[Any]]] = [
    ("vlen-utf8", STRING, {"id": "vlen-utf8"}, TEXT),
    ("vlen-bytes", VARIABLE_LENGTH_BYTES, {"id": "vlen-bytes"}, st.binary(max_size=5)),
    ("json2", OBJECT, numcodecs.JSON().get_config(), JSON),
    ("json2 indented", OBJECT, numcodecs.JSON(indent=2, ensure_ascii=False, encoding="utf-16", sort_keys=False).get_config(), JSON),
    ("msgpack2", OBJECT, numcodecs.MsgPack().get_config(), JSON),
    ("msgpack2 without bin", OBJECT, numcodecs.MsgPack(use_bin_type=False).get_config(), JSON),
    ("vlen-array i2", OBJECT, {"id": "vlen-array", "dtype": ">i2"}, st.lists(st.integers(-(2**15), 2**15 - 1), max_size=4)),
    ("vlen-array u8", OBJECT, {"id": "vlen-array", "dtype": "<u8"}, st.lists(st.integers(0, 2**64 - 1), max_size=4)),
    ("vlen-array f4", OBJECT, {"id": "vlen-array", "dtype": "<f4"}, st.lists(st.floats(width=32, allow_nan=False), max_size=4)),
    (
        "categorize",
        STRING,
        {"id": "categorize", "labels": ["b", "é", "aa"], "dtype": "|O", "astype": "|u1"},
        st.sampled_from(["", "é", "b", "aa"]),
    ),
]
every_kind = pytest.mark.parametrize(
    ("data_type", "config", "elements"), [kind[1:] for kind in KINDS], ids=[kind[0] for kind in KINDS]
)


@unhurried
@given(data=st.data(), shape=SHAPES)
@every_kind
def test_numcodecs_reads_and_writes_the_same_elements(
    data_type: DataType, config: dict[str, Any], elements: st.SearchStrategy[Any], data: st.DataObject, shape: tuple[int, ...]
) -> None:
    size = int(np.prod(shape))
    chunk = of_objects(data.draw(st.lists(elements, min_size=size, max_size=size)), shape)
    chain, theirs = chain_of(data_type, config), numcodecs.get_codec(config)
    encoded = bytes(chain.encode(chunk))
    assert same(chain.decode(encoded, shape), chunk)
    given = chunk
    if config["id"] == "vlen-array":
        given = of_objects([np.array(each, config["dtype"]) for each in chunk.reshape(-1)], shape)
    assert np.asarray(memoryview(theirs.encode(given))).tobytes() == encoded
    if config["id"] in ("json2", "msgpack2") and any(isinstance(each, list) for each in chunk.reshape(-1)):
        return  # numcodecs would read these lists as a dimension
    assert same(plain_lists(theirs.decode(encoded).reshape(shape)), chunk)


def every_array_of_objects() -> list[Any]:
    return [
        pytest.param(case, node, id=case.name + node["path"])
        for layout in ("v2", "v3_final")
        for case in cases(layout)
        for node in case.nodes("array")
        if is_object(node) and "pickle" not in str(node.get("filters"))
    ]


@pytest.mark.parametrize(("case", "node"), every_array_of_objects())
def test_what_other_software_wrote(case: Case, node: dict[str, Any]) -> None:
    prefix, metadata = metadata_of(case, node["path"])
    chain = CodecChain.build(metadata.codecs, metadata.data_type)
    elements = np.empty(metadata.shape, object)
    fill(metadata, elements)
    for coords in itertools.product(*map(range, metadata.grid_shape)):
        key = prefix + metadata.chunk_key_encoding.encode(coords)
        if key in case.values:
            shape = metadata.chunk_grid.chunk_shape(coords)
            begin = [index * extent for index, extent in zip(coords, shape, strict=True)]
            out = elements[(*(slice(first, first + extent) for first, extent in zip(begin, shape, strict=True)), ...)]
            chain.decode_into(case.values[key], shape, out, tuple(slice(0, extent) for extent in out.shape))
            chunk = chain.decode(case.values[key], shape)
            assert same(chain.decode(chain.encode(chunk), shape), chunk)
    assert elements.reshape(-1).tolist() == expected_objects(case, node)


# --- codecs of numcodecs ----------------------------------------------------------------------------------------------------------------

REFUSED = {"pickle": "to read a pickle is to run it"}
# numcodecs has these only if another library is installed; zarrfs always has that library, or never.
WITH_LIBRARIES = {"msgpack2", "pcodec", "zfpy", "snappy"}


def test_every_codec_of_numcodecs_is_read_or_refused_for_a_reason() -> None:
    registered = set(numcodecs.registry.codec_registry) | set(numcodecs.registry.entries)
    known = set()
    for name in registered:
        try:
            lookup.from_numcodecs({"id": name})
            known.add(name)
        except MetadataUnsupported:
            assert name in REFUSED or name in WITH_LIBRARIES, name
    assert known | set(REFUSED) | WITH_LIBRARIES >= registered
    assert "pickle" in registered and "pickle" not in known
    assert len(known) >= 25


# --- untrusted data ---------------------------------------------------------------------------------------------------------------------


def number(value: int) -> bytes:
    return struct.pack("<I", value)


ONE, TWO = number(1) + b"a", number(2) + b"bc"
LIES = {
    "nothing": b"",
    "no count": b"\2\0\0",
    "a count alone": number(2),
    "a larger count": number(3) + ONE + TWO,
    "a smaller count": number(1) + ONE + TWO,
    "a huge count": number(2**32 - 1) + ONE + TWO,
    "a length beyond the end": number(2) + ONE + number(3) + b"bc",
    "a huge length": number(2) + ONE + number(2**32 - 1) + b"bc",
    "a length that is cut": number(2) + ONE + b"\2\0",
    "bytes behind the last element": number(2) + ONE + TWO + b"x",
}


@pytest.mark.parametrize(
    ("data_type", "config"),
    [(STRING, {"id": "vlen-utf8"}), (VARIABLE_LENGTH_BYTES, {"id": "vlen-bytes"}), (OBJECT, {"id": "vlen-array", "dtype": "|u1"})],
    ids=lambda value: value["id"] if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("data", LIES.values(), ids=LIES)
def test_counts_and_lengths_that_lie(data_type: DataType, config: dict[str, Any], data: bytes) -> None:
    chain = chain_of(data_type, config)
    assert len(chain.decode(number(2) + ONE + TWO, (2,))) == 2
    with pytest.raises(ChunkDecodeError, match=f"^{config['id']}: "):
        chain.decode(data, (2,))


@pytest.mark.parametrize("text", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80"])
def test_text_that_is_no_utf_8(text: bytes) -> None:
    with pytest.raises(ChunkDecodeError, match="not UTF-8"):
        chain_of(STRING, {"id": "vlen-utf8"}).decode(number(1) + number(len(text)) + text, (1,))


def test_an_array_that_is_no_whole_number_of_its_numbers() -> None:
    with pytest.raises(ChunkDecodeError, match="not a multiple"):
        chain_of(OBJECT, {"id": "vlen-array", "dtype": "<i4"}).decode(number(1) + number(3) + b"abc", (1,))


TEXTS = [
    "",
    "null",
    "[]",
    '["|O",[2]]',
    '["a","|O",[2]]',
    '["a","b","c","|O",[2]]',
    '["a","b","|O",[1,2]]',
    '[["a"],["b","c"],"|O",[2,1]]',
    '["a","b","|O",[-2]]',
    '["a","b","|O",[2.0]]',
    '["a","b","|O",[true,2]]',
    '["a","b",1,[2]]',
    '["a","b","|O",2]',
    '["a","b","|O",[2]',
    '["a","b","|O",[2]]]',
    '{"a":"b"}',
    '["a","b","|O",[2]]x',
    "[" * 100_000,
    "[" * 100_000 + "]" * 100_000,
    '["a",' + "[" * 100_000 + "]" * 100_000 + ',"|O",[2]]',
    '["a",' + '{"a":' * 100_000 + "1" + "}" * 100_000 + ',"|O",[2]]',
    '["a",' + "9" * 5000 + ',"|O",[2]]',
]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:24])
def test_json_that_is_no_chunk(text: str) -> None:
    chain = chain_of(OBJECT, {"id": "json2"})
    assert chain.decode(b'["a","b","|O",[2]]', (2,)).tolist() == ["a", "b"]
    with pytest.raises(ChunkDecodeError, match=r"^json2: "):
        chain.decode(text.encode(), (2,))


PACKED = [
    b"",
    b"\xc0",
    msgpack.packb([]),
    msgpack.packb(["a", "|O", [2]]),
    msgpack.packb(["a", "b", "|O", [1, 2]]),
    msgpack.packb(["a", "b", "|O", [2]]) + b"\xc0",
    msgpack.packb(["a", b"b", "|O", [2]]),
    msgpack.packb(["a", {1: 2}, "|O", [2]]),
    msgpack.packb(["a", msgpack.Timestamp(1, 2), "|O", [2]]),
    msgpack.packb(["a", msgpack.ExtType(5, b"x"), "|O", [2]]),
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xdd\x00\xff\xff\xff" * 1000,
    b"\x91" * 100_000 + b"\xc0",
    b"\xc1",
    b"\x94\xa1a\xa1\xff\xa2|O\x91\x02",
]


@pytest.mark.parametrize("data", PACKED, ids=range(len(PACKED)))
def test_msgpack_that_is_no_chunk(data: bytes) -> None:
    chain = chain_of(OBJECT, {"id": "msgpack2"})
    assert chain.decode(msgpack.packb(["a", "b", "|O", [2]]), (2,)).tolist() == ["a", "b"]
    with pytest.raises(ChunkDecodeError, match=r"^msgpack2: "):
        chain.decode(data, (2,))


def test_a_code_without_a_label_is_an_error() -> None:
    config = {"id": "categorize", "labels": ["a"], "dtype": "|O", "astype": "|i1"}
    chain = CodecChain.build((lookup.from_numcodecs(config), CodecSpec("bytes")), STRING)
    assert chain.decode(b"\0\1", (2,)).tolist() == ["", "a"]
    for code in (b"\2", b"\xff"):
        with pytest.raises(ChunkDecodeError, match="code without a label"):
            chain.decode(b"\0" + code, (2,))


def test_categories_of_text_of_fixed_length() -> None:
    """There it is a filter on memory like any other."""
    from zarrfs.model.data_type import from_numpy

    config = {"id": "categorize", "labels": ["a", "éé"], "dtype": ">U2", "astype": "|u1"}
    chain = CodecChain.build((CodecSpec("bytes", {"endian": "big"}), lookup.from_numcodecs(config)), from_numpy(np.dtype("<U2")))
    chunk = np.array(["éé", "", "a"], "<U2")
    stored = numcodecs.get_codec(config).encode(chunk.astype(">U2")).tobytes()
    assert bytes(chain.encode(chunk)) == stored == b"\2\0\1"
    assert same(chain.decode(stored, (3,)), chunk)


BOMBS = {
    "zlib of text": (STRING, {"id": "vlen-utf8"}, "number(1) + number(2**29) + bytes(2**29)", (1,)),
    "zlib of empty text": (STRING, {"id": "vlen-utf8"}, "number(2**27) + bytes(2**29)", (2**25,)),
    "json of empty lists": (OBJECT, {"id": "json2"}, "b'[' + b'[],' * 2**26 + b'\"|O\",[%d]]' % 2**26", (2**25,)),
    "msgpack of empty lists": (
        OBJECT,
        {"id": "msgpack2"},
        "b'\\xdd' + (2**26 + 2).to_bytes(4, 'big') + b'\\x90' * 2**26 + b'\\xa2|O\\x90'",
        (2**25,),
    ),
    "msgpack of lists of empty lists": (
        OBJECT,
        {"id": "msgpack2"},
        "b'\\xdc\\x00\\x43' + (b'\\xdd' + (2**20).to_bytes(4, 'big') + b'\\x90' * 2**20) * 65 + b'\\xa2|O\\x91\\x41'",
        (65,),
    ),
    "msgpack of nested lengths": (OBJECT, {"id": "msgpack2"}, "b'\\xdd\\x00\\x40\\x00\\x00' * 2**20", (2,)),
}


def _bombs() -> list[Any]:
    seldom = ("zlib of text", "msgpack of lists of empty lists")
    return [pytest.param(*bomb, id=name, marks=pytest.mark.full_length if name in seldom else ()) for name, bomb in BOMBS.items()]


@pytest.mark.parametrize(("data_type", "config", "data", "shape"), _bombs())
def test_bombs_need_bounded_memory(data_type: DataType, config: dict[str, Any], data: str, shape: tuple[int, ...]) -> None:
    """Data that exceeds the cap after decompression is an error, and the memory needed is bounded by a multiple of that cap."""
    name = "STRING" if data_type == STRING else "OBJECT"
    program = f"""
        import resource, struct, sys, zlib
        from zarrfs.codecs import lookup
        from zarrfs.codecs.chain import CodecChain
        from zarrfs.errors import ChunkDecodeError
        from zarrfs.model import data_type

        def number(value):
            return struct.pack("<I", value)

        chain = CodecChain.build(
            (lookup.from_numcodecs({config!r}), lookup.from_numcodecs({{"id": "zlib", "level": 1}})), data_type.{name}
        )
        compressor = zlib.compressobj(1)
        bomb = compressor.compress({data}) + compressor.flush()
        chain.check((1,) * {len(shape)})
        pages = int(open("/proc/self/statm").read().split()[0])
        limit = pages * resource.getpagesize() + 4 * {MAX_VARIABLE_NBYTES}
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        try:
            chain.decode(bomb, {shape!r})
        except ChunkDecodeError as error:
            print(error)
        else:
            sys.exit("it was unpacked")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # The decoder has to stop before the limit of the process.
    assert "MemoryError" not in done.stdout


# --- encoding ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data_type", "config", "element"),
    [
        (STRING, {"id": "vlen-utf8"}, None),
        (STRING, {"id": "vlen-utf8"}, "\ud800"),
        (VARIABLE_LENGTH_BYTES, {"id": "vlen-bytes"}, "a"),
        (OBJECT, {"id": "vlen-array", "dtype": "|i1"}, [128]),
        (OBJECT, {"id": "vlen-array", "dtype": "|i1"}, [1.5]),
        (OBJECT, {"id": "vlen-array", "dtype": "|i1"}, ["1"]),
        (OBJECT, {"id": "vlen-array", "dtype": "|i1"}, [[1]]),
        (OBJECT, {"id": "vlen-array", "dtype": "|i1"}, "a"),
        (OBJECT, {"id": "vlen-array", "dtype": "|i1"}, 1),
        (OBJECT, {"id": "json2"}, b"a"),
        (OBJECT, {"id": "json2", "allow_nan": False}, float("nan")),
        (OBJECT, {"id": "msgpack2"}, 2**64),
        (STRING, {"id": "categorize", "labels": ["a"], "dtype": "|O", "astype": "|u1"}, "b"),
    ],
)
def test_what_the_codec_cannot_store_is_refused(data_type: DataType, config: dict[str, Any], element: Any) -> None:
    with pytest.raises(ChunkEncodeError):
        chain_of(data_type, config).encode(of_objects([element], (1,)))


@pytest.mark.parametrize(
    ("data_type", "config"),
    [
        (STRING, {"id": "json2"}),
        (OBJECT, {"id": "vlen-utf8"}),
        (VARIABLE_LENGTH_BYTES, {"id": "vlen-utf8"}),
        (OBJECT, {"id": "categorize", "labels": [], "dtype": "|O"}),
        (OBJECT, {"id": "msgpack2", "raw": True}),
        (OBJECT, {"id": "json2", "encoding": "idna"}),
        (OBJECT, {"id": "vlen-array", "dtype": "|O"}),
        (OBJECT, {"id": "vlen-array", "dtype": "<M8[s]"}),
    ],
)
def test_codecs_that_do_not_fit_the_elements(data_type: DataType, config: dict[str, Any]) -> None:
    with pytest.raises(MetadataError):
        chain_of(data_type, config)


def test_nothing_that_no_one_could_read_is_written() -> None:
    big = "x" * (MAX_VARIABLE_NBYTES // 2)
    with pytest.raises(ChunkEncodeError, match="exceed the limit"):
        chain_of(STRING, {"id": "vlen-utf8"}).encode(of_objects([big, big], (2,)))


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 2)])
@every_kind
def test_chunks_without_elements(
    data_type: DataType, config: dict[str, Any], elements: st.SearchStrategy[Any], shape: tuple[int, ...]
) -> None:
    chain = chain_of(data_type, config)
    assert chain.decode(chain.encode(np.empty(shape, object)), shape).shape == shape


@pytest.mark.parametrize(
    ("data_type", "name"), [(STRING, "vlen-utf8"), (VARIABLE_LENGTH_BYTES, "vlen-bytes"), (OBJECT, "numcodecs.json2")]
)
def test_what_follows_from_the_type_where_nothing_is_said(data_type: DataType, name: str) -> None:
    assert [spec.name for spec in CodecChain.build((CodecSpec("gzip", {"level": 1}),), data_type).specs] == [name, "gzip"]


def test_scalars_of_json() -> None:
    chain = chain_of(OBJECT, {"id": "json2"})
    assert bytes(chain.encode(of_objects([[1]], ()))) == b'[[1],"|O",[]]'
    assert chain.decode(b'[{"a":1},"|O",[]]', ()).tolist() == {"a": 1}
    assert json.loads(numcodecs.JSON().encode(np.array("x", object))) == ["x", "|O", []]
