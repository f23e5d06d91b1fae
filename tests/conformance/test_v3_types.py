"""Zarr core specification version 3.1, statement by statement: data types, fill values, grids, chunk keys, extensions."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.conformance import test_v3
from tests.conformance.test_v3 import (
    BYTES,
    GROUP,
    LEFT,
    OTHERS,
    REFUSED,
    WHOLE,
    bad,
    doc,
    fills,
    grid,
    line,
    made,
    store,
    unknown,
)
from tests.dialects.v3 import test_dialect as dialect_tests
from tests.support.conforming import (
    Check,
    all_of,
    array,
    document,
    elements,
    equal,
    group,
    metadata,
    reads,
    refuses,
)
from tests.support.statements import Statement

TEXT = test_v3.TEXT.continued()


# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("7", "Data types")


def of_type(data_type: str, dtype: str, *values: Any) -> Check:
    return reads(
        line(data_type, np.zeros(1, dtype).tolist()[0] if data_type[0] != "c" else [0, 0], *values, dtype=dtype),
        np.array(list(values), dtype),
    )


TEXT.row("bool", of_type("bool", "|b1", True, False))
for bits in (8, 16, 32, 64):
    TEXT.row(
        f"int{bits}: -2^{bits - 1} to 2^{bits - 1}-1",
        of_type(f"int{bits}", f"<i{bits // 8}", -(2 ** (bits - 1)), 2 ** (bits - 1) - 1),
    )
    TEXT.row(f"uint{bits}: 0 to 2^{bits}-1", of_type(f"uint{bits}", f"<u{bits // 8}", 0, 2**bits - 1))
TEXT.row("float16 (optional)", of_type("float16", "<f2", 1.5, np.nan, np.inf))
TEXT.row("float32", of_type("float32", "<f4", 1.5, np.nan, np.inf))
TEXT.row("float64", of_type("float64", "<f8", 1.5, np.nan, np.inf))
TEXT.row("complex64", of_type("complex64", "<c8", 1 - 2j))
TEXT.row("complex128", of_type("complex128", "<c16", 1 - 2j))
TEXT.row(
    "r*: raw bits (optional)",
    reads({"zarr.json": line("r24", [0, 0, 0])["zarr.json"], "c/0": b"\1\2\3"}, np.array([b"\1\2\3"], "|V3")),
)
TEXT.row("r*: a multiple of 8", all_of(*(bad("raw type", data_type=each, fill_value=[0]) for each in ("r7", "r0", "r012"))), OTHERS)
TEXT.tested(
    "extensions may have types of variable size",
    dialect_tests.test_elements_of_variable_length,
    "string and variable_length_bytes, with vlen-utf8 and vlen-bytes",
)
TEXT.row(
    "the types SHOULD be implemented by all",
    unknown("float128", data_type="float128"),
    "as stated; another is refused as unsupported, with its name",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("8", "Permitted fill values")

TEXT.row(
    "bool: true or false",
    all_of(
        fills("bool", True, True),
        bad("fill_value", data_type="bool", fill_value=1),
        bad("fill_value", data_type="bool", fill_value="true"),
    ),
    OTHERS,
)
TEXT.row(
    "integers: a number without fraction and exponent",
    all_of(
        fills("int8", -5, -5),
        bad("fill_value", fill_value=1.5),
        bad("fill_value", fill_value=True),
        bad("fill_value", fill_value=[1]),
    ),
    OTHERS,
)
TEXT.row(
    "integers: no fraction",
    lambda: equal((metadata(store(fill_value=7.0)) == metadata(store()), len(array(store(fill_value=7.0)).quirks)), (True, 1)),
    "7.0 is read as 7 (a quirk)",
)
TEXT.row(
    "integers: a number",
    lambda: equal((metadata(store(fill_value="7")) == metadata(store()), len(array(store(fill_value="7")).quirks)), (True, 1)),
    'the string "7", as bioformats2raw writes it, is read (a quirk); --dialect-choices v3.fill_value=refuse',
)
TEXT.row(
    "integers: within the range of the type",
    all_of(
        bad("fill_value", data_type="uint8", fill_value=256),
        bad("fill_value", data_type="uint8", fill_value=-1),
        fills("uint64", 2**64 - 1, 2**64 - 1),
    ),
    OTHERS,
)
TEXT.row(
    "floats: a number, rounded half to even",
    all_of(fills("float16", 2049, 2048.0), fills("float16", 2051, 2052.0), fills("float32", 0.1, np.float32(0.1))),
)
TEXT.row(
    'floats: "Infinity" and "-Infinity"',
    all_of(
        fills("float32", "Infinity", np.inf),
        fills("float64", "-Infinity", -np.inf),
        lambda: equal(document(made(dtype="float32", fill_value=-np.inf), "a/zarr.json")["fill_value"], "-Infinity"),
    ),
    "as stated, read and written",
)
TEXT.row(
    'floats: "NaN", the quiet one without a payload',
    lambda: equal(metadata(line("float32", "NaN")).fill_value, bytes.fromhex("0000c07f")),
)
TEXT.row(
    'floats: "0x...", the bits as an unsigned integer',
    all_of(
        lambda: equal(metadata(line("float32", "0x7fc00000")).fill_value, bytes.fromhex("0000c07f")),
        lambda: equal(metadata(line("float32", "0xff800001")).fill_value, bytes.fromhex("010080ff")),
        *(bad("fill_value", data_type="float32", fill_value=each) for each in ("0x7fc0", "0x7fc000000", "0xzz800001")),
    ),
    "as stated, with exactly the type's width",
)
TEXT.row(
    "another NaN is written in this form",
    lambda: equal(
        document(made(dtype="float32", fill_value=np.frombuffer(bytes.fromhex("010080ff"), "<f4")[0]), "a/zarr.json")["fill_value"],
        "0xff800001",
    ),
    "as stated, with its payload",
)
TEXT.row(
    "floats: no other string",
    all_of(*(bad("fill_value", data_type="float32", fill_value=each) for each in ("nan", "+Infinity", "1.5"))),
    OTHERS,
)
TEXT.row(
    "complex: an array of two floats",
    all_of(
        fills("complex64", [1, 2], 1 + 2j),
        fills("complex128", ["-Infinity", "NaN"], complex(-np.inf, np.nan)),
        *(bad("fill_value", data_type="complex64", fill_value=each) for each in (1, [1], [1, 2, 3], "NaN")),
    ),
    OTHERS,
)
TEXT.row(
    "r*: an array of N integers from 0 to 255",
    all_of(
        fills("r16", [1, 255], np.frombuffer(b"\1\xff", "|V2")[0]),
        *(bad("fill_value", data_type="r16", fill_value=each) for each in ([1], [1, 256], [1, -1], [1, 2, 3])),
    ),
    "as stated, as many as bytes (of the text's N bits)",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("9", "Chunk grids")

TEXT.row(
    "additional grids may be defined",
    unknown("rectilinear", chunk_grid={"name": "rectilinear", "configuration": {}}),
    "no extension is known yet: refused, with the name",
)
TEXT.row("regular: the dimensions of the grid are those of the array", bad("chunk", chunk_grid=grid(2)), REFUSED)
TEXT.row(
    "regular: the origin of chunk (k, j) is (k*dz, j*dy)",
    reads({"zarr.json": doc(shape=[4, 4]), "c/1/0": LEFT}, [[7] * 4, [7] * 4, [1, 2, 7, 7], [4, 5, 7, 7]]),
)
TEXT.row(
    "regular: chunk lengths must be greater than zero",
    bad("chunk", chunk_grid=grid(2, 0)),
    "as stated; 0 is read where the dimension is empty (a quirk)",
)
TEXT.row(
    "regular: the grid has ceil(z / dz) chunks: (10, 200, 3000) in (5, 20, 400) is (2, 10, 8)",
    lambda: equal(metadata({"zarr.json": doc(shape=[10, 200, 3000], chunk_grid=grid(5, 20, 400))}).grid_shape, (2, 10, 8)),
)
TEXT.row("regular: element (7, 150, 900) is (2, 10, 100) of chunk (1, 7, 2)", lambda: _element())
TEXT.row(
    "chunks at the edge have the full size",
    all_of(reads(store(), WHOLE), lambda: equal(len(made(shape=(3,), chunks=(2,), write={(1,): [5, 6]})["a/c/1"]), 8)),
)
TEXT.row(
    "elements outside should be written as the fill value",
    lambda: equal(made(shape=(3,), chunks=(2,), fill_value=9, write={(1,): [5, 6]})["a/c/1"], np.array([5, 9], "<i4").tobytes()),
)


def _element() -> None:
    block = np.zeros((5, 20, 400), "<i2")
    block[2, 10, 100] = 1
    found = elements({"zarr.json": doc(shape=[10, 200, 3000], chunk_grid=grid(5, 20, 400), fill_value=0), "c/1/7/2": block})
    assert np.argwhere(found).tolist() == [[7, 150, 900]]


# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("10", "Chunk key encodings")


def key_of(encoding: Any, coords: tuple[int, ...], key: str) -> Check:
    return lambda: equal(
        metadata(
            {"zarr.json": doc(shape=[99] * len(coords), chunk_grid=grid(*[1] * len(coords)), chunk_key_encoding=encoding)}
        ).chunk_key_encoding.encode(coords),
        key,
    )


def named(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}


TEXT.row(
    "default: separator is / or .",
    all_of(
        key_of(named("default", separator="/"), (1, 23, 45), "c/1/23/45"),
        key_of(named("default", separator="."), (1, 23, 45), "c.1.23.45"),
        *(bad("separator", chunk_key_encoding=named("default", separator=each)) for each in ("-", "", None)),
    ),
    OTHERS,
)
TEXT.row(
    "default: not specified, it is /",
    all_of(
        key_of("default", (1, 2), "c/1/2"), key_of({"name": "default"}, (1, 2), "c/1/2"), key_of(named("default"), (1, 2), "c/1/2")
    ),
)
TEXT.row(
    "default: c, then of each dimension the separator and the index in decimal",
    all_of(
        reads(store(), WHOLE), reads({"zarr.json": doc(), "c/00/0": LEFT, "c0/0": LEFT, "0.0": LEFT}, np.full((2, 3), 7, "<i2"))
    ),
    "as stated: no leading zeros",
)
TEXT.row("default: of no dimensions it is c", key_of("default", (), "c"))
TEXT.row(
    "v2: separator is / or ., and . where it is not specified",
    all_of(
        key_of("v2", (1, 23, 45), "1.23.45"),
        key_of(named("v2", separator="/"), (1, 23, 45), "1/23/45"),
        bad("separator", chunk_key_encoding=named("v2", separator="_")),
    ),
    OTHERS,
)
TEXT.row("v2: of no dimensions it is 0", key_of("v2", (), "0"))
TEXT.row(
    "v2 is not recommended for new arrays",
    lambda: equal(
        [document(made(separator=each), "a/zarr.json")["chunk_key_encoding"] for each in (None, ".")],
        [named("default", separator="/"), named("default", separator=".")],
    ),
    "as stated: never written, except where it exists",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("11", "Extensions")

TEXT.row(
    "an extension is an object or a short-hand name",
    all_of(*(bad("codecs", codecs=[each]) for each in (5, None, ["bytes"]))),
    OTHERS,
)
TEXT.row("name MUST be a string", all_of(bad("name", codecs=[{"name": 5}]), bad("name", codecs=[{"configuration": {}}])), REFUSED)
TEXT.row(
    "configuration MAY be present, and MUST be an object",
    all_of(
        bad("configuration", codecs=[{"name": "bytes", "configuration": []}]),
        bad("configuration", data_type={"name": "int16", "configuration": 5}),
    ),
    "as stated; null is read as absent",
)
TEXT.row(
    "a short-hand name is an object with that name",
    all_of(
        reads(store(codecs=["bytes"]), WHOLE),
        lambda: equal(metadata(store(chunk_key_encoding="default")), metadata(store())),
        lambda: equal(metadata(store(data_type={"name": "int16"})), metadata(store())),
    ),
)
TEXT.row("must_understand is true where it is not set", unknown("made_up", codecs=[BYTES, {"name": "made_up"}]))
TEXT.row(
    "must_understand false: it may be ignored",
    lambda: equal(elements(store(codecs=[BYTES, {"name": "made_up", "must_understand": False}])).tolist(), WHOLE.tolist()),
    "as stated: ignored where it is unknown (a quirk)",
)
TEXT.row(
    "an implementation MUST fail for fields that it does not know",
    all_of(
        unknown("made_up", made_up=1),
        unknown("made_up", made_up={"x": 1}),
        refuses({"zarr.json": {**GROUP, "made_up": None}}, "made_up", bad=False),
        unknown("zz", codecs=[{**BYTES, "zz": 1}]),
    ),
    "as stated: refused in arrays, in groups and within extensions",
)
TEXT.row(
    "but for those that are must_understand false",
    all_of(
        reads(store(made_up={"must_understand": False}), WHOLE),
        lambda: equal(group({"zarr.json": {**GROUP, "made_up": {"must_understand": False}}}).explicit, True),
    ),
)
TEXT.row(
    "must_understand false is not supported of data type, grid and key encoding",
    all_of(
        unknown("made_up", data_type={"name": "made_up", "must_understand": False}),
        unknown("made_up", chunk_grid={"name": "made_up", "must_understand": False}),
        unknown("made_up", chunk_key_encoding={"name": "made_up", "must_understand": False}),
    ),
    "as stated: refused nevertheless",
)
TEXT.row(
    "registered names are lower case letters, digits, underscores, dots, dashes",
    all_of(unknown("NumCodecs", codecs=[BYTES, {"name": "NumCodecs.zlib"}]), unknown("Bytes", codecs=["Bytes"])),
    "names are case-sensitive",
)
TEXT.row(
    "names that are URIs are still permitted",
    unknown("https://example.com/x", codecs=[BYTES, {"name": "https://example.com/x"}]),
    "no such extension is known: refused, with the name",
)
TEXT.row("the example: a string array with vlen-utf8 and zstd", lambda: _strings())


def _strings() -> None:
    import numcodecs

    codecs = [{"name": "vlen-utf8"}, {"name": "zstd", "configuration": {"level": 0, "checksum": False}}]
    text = np.array(["a", "", "äöü"], object)
    data = numcodecs.Zstd().encode(numcodecs.VLenUTF8().encode(text))
    of = doc(
        shape=[3],
        chunk_grid=grid(3),
        data_type="string",
        chunk_key_encoding=named("default", separator="."),
        codecs=codecs,
        fill_value="",
        dimension_names=["x"],
    )
    assert elements({"zarr.json": of, "c.0": bytes(data)}).tolist() == text.tolist()


@TEXT.own
def test_statement(statement: Statement) -> None:
    statement.check()  # type: ignore[operator]
