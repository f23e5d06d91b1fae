"""``zarrfs info`` of every store of ``tests/cases``, compared with its MANIFEST for each node."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import trio

from tests.support.cases import CASES, Case, cases
from tests.support.comparing import is_object, stored_chunks
from tests.support.hostile import SOUND
from zarrfs.options.config import MountConfig
from zarrfs.reports.info import describe

DIALECTS = {
    "v0_persistence": "v0",
    "v1": "v1",
    "v2": "v2",
    "v3_2019": "v3_2019",
    "v3_2020_zarrita": "v3_2022",
    "v3_draft2022_gdal": "v3_2022",
    "v3_draft2022_seed": "v3_2022",
    "v3_draft2022_zarrpython": "v3_2022",
    "v3_final": "v3",
}
DOCUMENTS = {"zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata", "meta", "attrs", "__zmeta__", "__zattr__"}
SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "+Infinity": math.inf, "-Infinity": -math.inf}
SHUFFLES = {0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}

Node = dict[str, Any]


def parameters(*layouts: str) -> list[Any]:
    return [pytest.param(case, id=case.name) for layout in layouts for case in cases(layout)]


def described(case: Case, path: str = "/", *, indexes: bool = False) -> dict[str, Node]:
    """Return the nodes of a store by path, after a round trip through strict JSON."""
    said = trio.run(partial(describe, MountConfig(store=str(case.path)), path, indexes=indexes))
    nodes = json.loads(json.dumps(said, allow_nan=False))["nodes"]
    assert len({node["path"] for node in nodes}) == len(nodes)
    return {node["path"]: node for node in nodes}


def test_every_layout_is_here() -> None:
    assert {folder.name for folder in CASES.iterdir() if folder.is_dir()} == {*DIALECTS, "hostile", "other_forms"}


@pytest.mark.parametrize("case", parameters(*DIALECTS))
def test_info_says_what_the_manifest_says(case: Case, expect_logs: Callable[[str], None]) -> None:
    expect_logs("fallback|order is F")
    nodes = described(case)
    refused = set(filter(None, case.manifest.get("expect", "").removeprefix("refuse:").split(",")))
    told = {node["path"] for node in case.nodes()}
    assert told <= set(nodes)
    # Implied groups are not in every manifest, and GDAL's has no groups at all.
    assert all(node["kind"] == "group" for path, node in nodes.items() if path not in told)
    assert not case.nodes("group") or not any(node["explicit"] for path, node in nodes.items() if path not in told)
    assert {node["dialect"] for node in nodes.values()} == {DIALECTS[case.manifest["dialect"]]}
    assert all(node["hidden_dialects"] == [] for node in nodes.values())
    for node in case.nodes():
        said = nodes[node["path"]]
        if node["path"] in refused:
            assert (said["kind"], "pickle" in said["reason"]) == ("unsupported", True)
            continue
        assert said["kind"] == node["kind"], node["path"]
        if "attributes_subset" in node:
            assert said["attributes"].items() >= node["attributes_subset"].items()
        elif "attributes" in node:
            assert said["attributes"] == node["attributes"], node["path"]
        if node["kind"] == "group":
            assert said["explicit"] is not node.get("implicit", False), node["path"]
        else:
            check_array(case, node, said)
    check_stored_nbytes(case, nodes, refused)


def check_array(case: Case, node: Node, said: Node) -> None:
    where = f"{case.name}{node['path']}"
    assert said["shape"] == node["shape"], where
    assert said["dimension_names"] == node.get("dimension_names"), where
    assert said["data_type"] == data_type(node), where
    dtype = None if is_object(node) else numpy_dtype(node["dtype"])
    if node["fill_value"] is None:
        assert (said["fill_value"], said["fill_text"]) == (None, None), where
    elif dtype is None:
        assert said["fill_value"] == node["fill_value"], where
    else:
        assert element(dtype, said["fill_value"]) == element(dtype, node["fill_value"]), where
    check_chunks(case, node, said)
    check_codecs(node, said)
    assert said["nbytes"] == (None if dtype is None else math.prod(node["shape"]) * dtype.itemsize), where
    assert said["ratio"] == (said["nbytes"] / said["stored_nbytes"] if said["nbytes"] and said["stored_nbytes"] else None)
    assert said["error"] is None


def check_chunks(case: Case, node: Node, said: Node) -> None:
    where = f"{case.name}{node['path']}"
    stored = len(stored_chunks(node))
    shapes = [node[name] for name in ("chunk_shape", "inner_chunk_shape", "innermost_chunk_shape") if node.get(name) is not None]
    if node.get("chunks_per_shard"):
        # The layouts of 2022 declare the chunks, and their number in a shard.
        shapes = [[n * count for n, count in zip(node["chunk_shape"], node["chunks_per_shard"], strict=True)], node["chunk_shape"]]
        # Storage transformers may be stacked: intermediate levels are in no manifest.
        assert said["shards"][0]["shape"] == shapes[0], where
    else:
        assert [level["shape"] for level in said["shards"]] == shapes[:-1], where
        assert (said["shards_possible"] if shapes[1:] else said["chunks_possible"]) == math.prod(node["chunk_grid_shape"]), where
    innermost = shapes[-1]
    assert said["chunk_shape"] == innermost, where
    grid = [-(-extent // length) if extent else 0 for extent, length in zip(node["shape"], innermost, strict=True)]
    assert said["chunks_possible"] == math.prod(grid), where
    if not said["shards"]:
        assert (said["chunks_stored"], said["shards_stored"], said["shards_possible"]) == (stored, None, None), where
        assert "missing_chunks" not in node or stored == math.prod(grid) - len(node["missing_chunks"]), where
        return
    missing = node["missing_shards"] if "missing_shards" in node else node["missing_chunks"]
    assert said["shards_stored"] == said["shards_possible"] - len(missing), where
    assert (said["chunks_stored"], said["indexes"]) == (None, None), where
    named = described(case, node["path"], indexes=True)[node["path"]]
    assert (named["chunks_stored"], named["indexes"]["bad"], named["indexes"]["bad_chunks"]) == (stored, 0, 0), where


def check_codecs(node: Node, said: Node) -> None:
    names = [codec["name"].removeprefix("numcodecs.") for codec in said["codecs"]]
    configurations = dict(zip(names, (codec["configuration"] for codec in said["codecs"]), strict=True))
    if "codecs" in node and not said["shards"]:
        assert said["codecs"] == [{"configuration": {}, **codec} for codec in node["codecs"]]
    if said["dialect"] in ("v0", "v1", "v2"):
        compressor = node.get("compressor") or ({"id": node["compression"]} if node.get("compression") else None)
        filters = [each["id"] for each in node.get("filters") or []]
        ours = [name for name in names if name not in ("transpose", "bytes")]
        # For the text's own example the manifest has only its elements.
        assert ours == [*filters, *([compressor["id"]] if compressor else [])] or node.get("optional")
        assert ("transpose" in names) == (node.get("order") == "F" and "order_quirk" not in node and not node.get("optional"))
        for name, value in (compressor or {}).items():
            if name != "id" and (name, value) != ("shuffle", -1):
                assert configurations[names[-1]][name] == (SHUFFLES[value] if name == "shuffle" else value)
    # In the layouts since 2022 the byte order is not part of the type.
    if said["dialect"] in ("v0", "v1", "v2", "v3_2019") and isinstance(node["dtype"], str) and node["dtype"][0] in "<>":
        assert configurations["bytes"]["endian"] == ("big" if node["dtype"][0] == ">" else "little")


def check_stored_nbytes(case: Case, nodes: dict[str, Node], refused: set[str]) -> None:
    """Assert that every value except documents is a chunk or a shard, and belongs to a reported array."""
    left_out = set(case.manifest.get("extra_keys", ()))
    stored = 0
    for key, value in case.values.items():
        is_document = key.startswith("meta/") or key.rpartition("/")[2] in DOCUMENTS
        if not is_document and key not in left_out and not any(f"/{key}".startswith(f"{path}/") for path in refused):
            stored += len(value)
    assert sum(node["stored_nbytes"] for node in nodes.values() if node["kind"] == "array") == stored


def data_type(node: Node) -> Any:
    """Return the name of a type in final v3; the manifest has NumPy's."""
    if is_object(node):
        first = (node.get("filters") or [{"id": "vlen-utf8"}])[0]["id"]
        return {"vlen-utf8": "string", "categorize": "string", "vlen-bytes": "variable_length_bytes"}.get(first, "object")
    said = node.get("data_type")
    if isinstance(said, dict) and "configuration" in said:
        return said
    return of_numpy(numpy_dtype(node["dtype"]))


def of_numpy(dtype: np.dtype[Any]) -> Any:
    def configured(name: str, **configuration: Any) -> dict[str, Any]:
        return {"name": name, "configuration": configuration}

    if dtype.names is not None:
        assert dtype.fields is not None
        fields: list[list[Any]] = []
        for name in dtype.names:
            base, shape = dtype.fields[name][0].base, dtype.fields[name][0].shape
            fields.append([name, of_numpy(base), *([list(shape)] if shape else [])])
        return configured("structured", fields=fields)
    match dtype.kind:
        case "S":
            return configured("null_terminated_bytes", length_bytes=dtype.itemsize)
        case "U":
            return configured("fixed_length_utf32", length_bytes=dtype.itemsize)
        case "V":
            return configured("raw_bytes", length_bytes=dtype.itemsize)
        case "M" | "m":
            unit, scale = np.datetime_data(dtype)
            return configured("numpy.datetime64" if dtype.kind == "M" else "numpy.timedelta64", unit=unit, scale_factor=scale)
    return dtype.name


def numpy_dtype(said: Any) -> np.dtype[Any]:
    if isinstance(said, str):
        return np.dtype(said)
    return np.dtype([(name, numpy_dtype(inner), *(tuple(shape) for shape in more)) for name, inner, *more in said])


def element(dtype: np.dtype[Any], said: Any) -> bytes:
    """Return the element, little-endian, for a fill value from a manifest or a report."""
    little = dtype.newbyteorder("<")

    def digits(text: str) -> bytes:
        return int(text, 0).to_bytes(dtype.itemsize, "big" if dtype.kind == "V" else "little")

    match said:
        case {"bytes_hex": text}:
            return np.frombuffer(bytes.fromhex(text).ljust(dtype.itemsize, b"\0"), dtype)[0:1].astype(little).tobytes()
        case {"i8": number}:
            return int(number).to_bytes(8, "little", signed=True)
        case str() if dtype.kind == "U":
            return np.array(said, little).tobytes()
        case str() if said in SPECIAL:
            return np.array(SPECIAL[said], little).tobytes()
        case str() if said[:2] in ("0x", "0b"):
            return digits(said)
        case str():
            return base64.b64decode(said).ljust(dtype.itemsize, b"\0")
        case [_, _] if dtype.kind == "c":
            return np.array([SPECIAL.get(part, part) for part in said], f"<f{dtype.itemsize // 2}").tobytes()
        case int() if dtype.kind in "mM":
            return said.to_bytes(8, "little", signed=True)
        case 0 if dtype.kind == "V":
            return bytes(dtype.itemsize)
    return np.array(said, little).tobytes()


QUIRKS = {
    "v1/i4_2d_zlib_F": {"/": "order is F"},
    "v1/spec_example_defaults": {"/": "order is F"},
    "v3_draft2022_seed/extensions": {"/unknown_with_fallback": "uint16", "/unknown_fallback_list": "int32"},
    "v3_draft2022_zarrpython/filters": {"/g/delta": "hidden in the attributes"},
    "v3_2019/seed_forms": {"/imp/unk": "fallback"},
    "other_forms/v2": {
        "/": "zarr_format is the string",
        "/bioformats": "of a number is a string",
        "/webknossos": "zarr_format is the string",
        "/gdal": 'shuffle of blosc is "BIT"',
        "/gdal_lzma": "lzma has the member delta (4)",
        "/gdal_zstd": 'checksum of zstd is "NO" instead of false',
        "/date_text": "of a date is text",
        "/netcdf": "elementsize of shuffle is 0, read as 4",
        "/netcdf_text": 'level of "zlib" is the string "4"',
        "/number_for_text": "of a string is a number",
        "/no_filters": "filters is missing",
    },
    "other_forms/nested_unnamed": dict.fromkeys(("/a", "/g/sparse"), "keys like '0/0"),
    "other_forms/only_zmetadata": dict.fromkeys(("/", "/a", "/g", "/g/b", "/g/missing"), "consolidated copy"),
    "other_forms/v3": {
        "/gdal": "codecs is missing",
        "/zarrita": "no array -> bytes codec",
        "/bioformats": "of an integer type is a string",
    },
}


@pytest.mark.parametrize("name", QUIRKS)
def test_what_producers_did_otherwise_is_told(name: str, expect_logs: Callable[[str], None]) -> None:
    expect_logs("fallback|order is F")
    (case,) = [case for case in cases(name.split("/")[0]) if case.name == name]
    nodes = described(case)
    for path, words in QUIRKS[name].items():
        assert any(words in quirk for quirk in nodes[path]["quirks"]), nodes[path]["quirks"]


# --- hostile stores ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", parameters("hostile"))
def test_info_of_a_hostile_store_tells_what_is_wrong(case: Case, expect_logs: Callable[[str], None]) -> None:
    expect_logs("symbolic links")
    nodes = described(case)
    for node in case.nodes("array"):
        assert nodes[node["path"]]["shape"] == node["shape"]
        assert nodes[node["path"]]["chunks_stored"] == math.prod(node["chunk_grid_shape"])
    unsupported = {path for path, node in nodes.items() if node["kind"] == "unsupported"}
    assert all(len(nodes[path]["reason"]) > 20 for path in unsupported)
    if case.name.removeprefix("hostile/") in ("v2_bad_metadata", "v2_json", "v2_pickle", "v3_bad_metadata"):
        # In the last one, only the chunk is bad.
        assert unsupported == set(case.manifest["hostile"]["bad_nodes"]) - SOUND - {"/no_bytes_codec"}
    else:
        # Defects of chunks are found by reading them.
        assert unsupported == set()


def test_a_grid_that_nobody_can_go_through() -> None:
    (case,) = [case for case in cases("hostile") if case.name == "hostile/v2_bad_metadata"]
    said = described(case)["/many_chunks"]
    assert (said["chunks_stored"], said["chunks_possible"], said["nbytes"], said["ratio"]) == (0, 2**62, 2**62, None)
