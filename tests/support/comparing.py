"""Comparison of displayed arrays and hierarchies with the expectations of a case of ``tests/cases``."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest

from tests.support.cases import Case

Node = dict[str, Any]


def is_object(node: Node) -> bool:
    """Return True for elements of variable length."""
    return node["dtype"] == "object" or "expected_json" in node


def why_left_out(node: Node, view: str = "npy") -> str | None:
    """Return a pattern of the reason for which ``view`` cannot show an array; None if it is shown."""
    if not is_object(node):
        return None
    first = (node.get("filters") or [{}])[0].get("id")
    if first == "pickle":
        return "pickle"
    if view == "npy":
        return "variable-length"
    return "objects of any kind" if view == "zarr3" and first in ("json2", "msgpack2", "vlen-array") else None


def stored_chunks(node: Node) -> set[tuple[int, ...]]:
    """Return the chunks of an array that its store holds; for a sharded one, the innermost."""
    if node.get("chunks_per_shard"):
        # In the layouts of 2022, all of these are the innermost chunks.
        missing = {tuple(coords) for coords in node["missing_chunks"]}
        return set(np.ndindex(*node["chunk_grid_shape"])) - missing
    shapes = [node[name] for name in ("chunk_shape", "inner_chunk_shape", "innermost_chunk_shape") if node.get(name)]
    innermost = shapes[-1] if shapes else []
    missing = [[coords] for coords in node["missing_chunks"]]
    missing += [[*outer, inner] for outer, inner in node.get("empty_inner_chunks") or []]
    grid = (
        [-(-extent // length) for extent, length in zip(node["shape"], innermost, strict=True)]
        if shapes
        else node["chunk_grid_shape"]
    )
    stored = np.ones(grid, bool)
    for path in missing:
        # First element and shape of the chunk, or of the whole shard if none of it is stored.
        corner = [sum(index[axis] * shape[axis] for index, shape in zip(path, shapes, strict=False)) for axis in range(len(grid))]
        lengths = shapes[len(path) - 1] if shapes else []
        starts = [start // length for start, length in zip(corner, innermost, strict=True)]
        counts = [whole // length for whole, length in zip(lengths, innermost, strict=True)]
        stored[tuple(slice(start, start + count) for start, count in zip(starts, counts, strict=True))] = False
    return {tuple(map(int, coords)) for coords in np.argwhere(stored)}


def shown_chunks(case: Case, node: Node) -> set[str]:
    """Return the chunk files listed in ``chunks/``: the whole grid where ``.zarray`` does not give the value of missing chunks."""
    stored = stored_chunks(node)
    if _is_apart(case, node) and not _is_fill_shown(node):
        shapes = [node[name] for name in ("chunk_shape", "inner_chunk_shape", "innermost_chunk_shape") if node.get(name)]
        grid = [-(-n // c) for n, c in zip(node["shape"], shapes[-1], strict=True)] if shapes else node["chunk_grid_shape"]
        stored = set(np.ndindex(*grid))
    return {".".join(map(str, coords)) or "0" for coords in stored}


def _is_final(case: Case) -> bool:
    """Return True if the store is of final v3."""
    return case.name.startswith(("v3_final/", "other_forms/v3"))


def _is_apart(case: Case, node: Node) -> bool:
    """Return True if ``.zarray`` does not show the fill value of the store: in final v3, and for zero and some NaNs in its drafts."""
    fill = node["fill_value"] if isinstance(node["fill_value"], list) else [node["fill_value"]]
    is_zero = all(part in (0, "") and part is not None for part in fill)
    return _is_final(case) or (case.name.startswith(("v3_2", "v3_draft")) and (is_zero or _has_unnamed_nan(node)))


def _is_fill_shown(node: Node) -> bool:
    described = node.get("npy_dtype")
    if isinstance(described, list):
        return True
    dtype = np.dtype(described if described and node["dtype"] != "object" else object)
    if dtype.kind not in "biufcSUO":
        return True
    return dtype.kind in "fc" and bool(_nans(node)) and not _has_unnamed_nan(node)


def _nans(node: Node) -> list[str]:
    fill = node["fill_value"] if isinstance(node["fill_value"], list) else [node["fill_value"]]
    return [part for part in fill if isinstance(part, str) and (part == "NaN" or _is_nan_in_hex(part))]


def _is_nan_in_hex(text: str) -> bool:
    data = bytes.fromhex(text[2:]) if text.startswith("0x") else b""
    return len(data) in (2, 4, 8) and bool(np.isnan(np.frombuffer(data, f">f{len(data)}")[0]))


def _has_unnamed_nan(node: Node) -> bool:
    """Return True if the fill value has a NaN other than NumPy's, the only one that Zarr v2 names."""
    named = ("NaN", *(f"0x{np.array(np.nan, number).tobytes().hex()}" for number in (">f2", ">f4", ">f8")))
    described = node.get("npy_dtype")
    return isinstance(described, str) and np.dtype(described).kind in "fc" and not set(_nans(node)) <= set(named)


def plain_dtype(case: Case, node: Node) -> np.dtype[Any]:
    """Return the type of the expected elements, little-endian."""
    return case.expected(node).dtype.newbyteorder("<")


def assert_expected(case: Case, node: Node, shown: np.ndarray[Any, Any], *, one_nan: bool = False) -> None:
    """Assert the same type (little-endian), shape and bits, except for parts that the store leaves undefined.

    With ``one_nan``, all NaNs are equal, as for a fill value in Zarr v2.
    """
    expected = case.expected(node)
    where = f"{case.name}{node['path']}"
    assert shown.dtype == plain_dtype(case, node), where
    assert shown.shape == expected.shape == tuple(node["shape"]), where
    compared = np.ones(expected.shape, bool)
    if node.get("undefined_in_missing"):
        for coords in node["missing_chunks"]:
            starts = [index * length for index, length in zip(coords, node["chunk_shape"], strict=True)]
            compared[tuple(slice(s, s + n) for s, n in zip(starts, node["chunk_shape"], strict=True))] = False
    ours, theirs = shown[compared], expected.astype(shown.dtype)[compared]
    if one_nan and shown.dtype.kind == "f":
        ours[np.isnan(ours)] = theirs[np.isnan(theirs)] = np.nan
    assert ours.tobytes() == theirs.tobytes(), f"{where}:\n{shown}\n instead of\n{expected}"


def expected_objects(case: Case, node: Node) -> list[Any]:
    """Return the elements of an array of objects, in C order."""
    said = json.loads((case.folder / node["expected_json"]).read_text())
    assert said["shape"] == node["shape"]
    return [
        bytes.fromhex(each["bytes_hex"]) if isinstance(each, dict) and each.keys() == {"bytes_hex"} else each
        for each in said["c_order_values"]
    ]


def assert_expected_objects(case: Case, node: Node, document: bytes, chunks: Mapping[str, bytes]) -> None:
    """Decode the chunks in ``chunks/`` of an array of objects with numcodecs and its ``.zarray``; compare all elements."""
    said = json.loads(document)
    assert (said["dtype"], said["compressor"], said["order"], len(said["filters"])) == ("|O", None, "C", 1)
    assert set(chunks) == shown_chunks(case, node)
    codec = numcodecs.get_codec(said["filters"][0])
    elements: np.ndarray[Any, Any] = np.full(said["shape"], said["fill_value"], object)
    for name, data in chunks.items():
        starts = [index * length for index, length in zip(map(int, name.split(".")), said["chunks"], strict=False)]
        chunk = _of_json(data) if codec.codec_id == "json2" else codec.decode(data).reshape(said["chunks"])
        assert chunk.shape == tuple(said["chunks"])
        inside = tuple(slice(0, end - start) for start, end in zip(starts, said["shape"], strict=False))
        part = chunk[(*inside, ...)]
        elements[(*(slice(start, start + n) for start, n in zip(starts, part.shape, strict=True)), ...)] = part
    assert elements.reshape(-1).tolist() == expected_objects(case, node), f"{case.name}{node['path']}"


def _of_json(data: bytes) -> np.ndarray[Any, Any]:
    """Return the elements in JSON text of numcodecs, which converts list elements to dimensions."""
    *nested, _, shape = json.loads(data)
    chunk: np.ndarray[Any, Any] = np.empty(shape, object)
    for index in np.ndindex(*shape) if shape else [(0,)]:
        value = nested
        for step in index:
            value = value[step]
        chunk[index if shape else ()] = value
    return chunk


def assert_expected_in_zarr(case: Case, store: Any) -> int:
    """Compare all arrays and attributes of a case with ``store`` as zarr-python reads it; return the number of arrays.

    ``store`` is a path or a store of zarr-python, opened as Zarr v2. Skipped: arrays that are not shown, or whose type zarr-python lacks.
    """
    zarr = pytest.importorskip("zarr")
    readable = readable_by_zarr(case)
    count = 0
    with warnings.catch_warnings():
        # zarr-python warns of types that the final v3 does not have.
        warnings.simplefilter("ignore")
        for node in case.nodes():
            path = node["path"].strip("/")
            if node["kind"] == "group":
                group = zarr.open_group(store, path=path, mode="r", zarr_format=2)
                assert dict(group.attrs) == node.get("attributes", {}), f"{case.name}{node['path']}"
            elif node in readable:
                array = zarr.open_array(store, path=path, mode="r", zarr_format=2)
                attributes = node.get("attributes", {})
                made = {"zarrfs"} | ({"_ARRAY_DIMENSIONS"} if "_ARRAY_DIMENSIONS" not in attributes else set())
                shown = {name: value for name, value in array.attrs.items() if name not in made}
                assert shown == attributes or "attributes" not in node, f"{case.name}{node['path']}"
                scalar = [] if _is_final(case) and not node["shape"] else None
                assert array.attrs.get("_ARRAY_DIMENSIONS") == (_dimension_names(node) or scalar)
                elements = np.asarray(array[...])
                if is_object(node):
                    assert elements.reshape(-1).tolist() == expected_objects(case, node), f"{case.name}{node['path']}"
                else:
                    assert_expected(case, node, elements, one_nan=True)
                count += 1
    return count


def in_memory(files: Mapping[str, bytes]) -> Any:
    """Return a store of zarr-python with these files."""
    pytest.importorskip("zarr")
    from zarr.core.buffer import cpu
    from zarr.storage import MemoryStore

    return MemoryStore({name: cpu.Buffer.from_bytes(value) for name, value in files.items()}, read_only=True)


def folder_cases(all_cases: list[Case]) -> list[Any]:
    """Return the cases whose store is a folder, as parameters."""
    return [pytest.param(case, id=case.name) for case in all_cases if case.manifest["store_format"] == "directory"]


def npy_path(case: Case, node: Node, store_name: str = "store") -> str:
    """Return the path of an array in ``npy/``."""
    return f"{node['path'].strip('/') or store_name}.npy"


def reason_path(node: Node, store_name: str = "store") -> str:
    """Return the path of the file in which a view states why it does not show an array."""
    return f"{node['path'].strip('/') or store_name}.unsupported.txt"


def tree_below(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, without symbolic links."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and not file.is_symlink()
    }


def readable_by_zarr(case: Case) -> list[Node]:
    """Return the arrays that `assert_expected_in_zarr` compares."""
    return [
        node
        for node in case.nodes("array")
        if why_left_out(node, "chunks") is why_left_out(node, "zarr3") is None and not _has_subarrays(node)
    ]


def _has_subarrays(node: Node) -> bool:
    """Return True if a field is an array, or has fields itself; zarr-python 3 has no Zarr v2 type for it."""
    return isinstance(node["dtype"], list) and any(len(field) > 2 or isinstance(field[1], list) for field in node["dtype"])


def _dimension_names(node: Node) -> list[str] | None:
    given = node.get("attributes", {}).get("_ARRAY_DIMENSIONS")
    names = node.get("dimension_names")
    return given if given is not None else names if names and all(names) else None
