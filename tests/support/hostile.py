"""Malicious stores: those of ``tests/cases/hostile`` and one more written here, with the requirements on each."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.cases import Case, cases
from tests.support.comparing import assert_expected
from tests.support.small_stores import array_document
from tests.support.survey import Found

# Symbolic links to folders, which are not listed; `zarrfs check` alone names them.
LINKS = {"/outdir", "/loop"}
# Bad for their authors but valid here: an array without chunks, however many it could have; a node that is an array and a group;
# a format given as text, as webknossos writes it.
SOUND = {"/many_chunks", "/both", "/fmt_string"} | LINKS
CANARY = "PICKLE_CANARY"
# The unreadable ones of the two chunks of each shard of `v3_bad_shards`. Where the rest of the index is valid, the other one is readable.
BAD_SHARDS = {
    "/crc_mismatch": {0, 1},
    "/empty_shard": {0, 1},
    "/half_empty_marker": {1},
    "/huge_nbytes": {0},
    "/into_index": {1},
    "/out_of_range": {1},
    "/overflow": {1},
    "/smaller_than_index": {0, 1},
    "/wrong_nbytes": {1},
}


def folder_cases() -> list[Case]:
    """Return the cases whose store is a folder."""
    return [case for case in cases("hostile") if case.manifest["store_format"] == "directory"]


def check(case: Case, found: dict[str, Found]) -> None:
    """Assert the requirements on a survey of a hostile case, whether through the kernel or not."""
    for node in case.nodes("array"):
        assert_reads(case, node, found)
    for path in case.manifest["hostile"]["bad_nodes"]:
        if case.name == "hostile/v3_bad_shards":
            assert_bad_shard(path, found)
        elif path not in SOUND:
            assert_refused(path, found, case.values.keys())
    secret = case.folder / "secret" / "secret.bin"
    if secret.exists():
        content = secret.read_bytes()
        assert not [path for path, each in found.items() if content in each.data]
    shown = {path.split("/")[1].partition(".")[0] for path in found if path.startswith("npy/")}
    with_documents = {
        entry.name for entry in os.scandir(case.path) if entry.is_dir(follow_symlinks=False) and not _is_empty(Path(entry.path))
    }
    assert with_documents <= shown | {"both"}, "a bad node hides its neighbours"


def assert_reads(case: Case, node: dict[str, Any], found: dict[str, Found]) -> None:
    """Assert that a sound array reads exactly, whole and chunk by chunk."""
    path = node["path"]
    assert_expected(case, node, np.load(io.BytesIO(found[f"npy{path}.npy"].data), allow_pickle=False))
    chunks = [found[f"chunks{path}/{index}"].data for index in range(node["chunk_grid_shape"][0])]
    assert b"".join(chunks) == case.expected(node).tobytes()


def assert_refused(path: str, found: dict[str, Found], keys: Collection[str]) -> None:
    """Assert that a bad node is shown with the reason, or that every read of it is an error."""
    reasons = [found.get(f"{view}{path}.unsupported.txt") for view in ("npy", "chunks")]
    if any(reasons):
        assert all(each is not None and len(each.data) > 20 for each in reasons)
        assert f"npy{path}.npy" not in found
    else:
        error = found[f"npy{path}.npy"].error
        read = {name: each for name, each in found.items() if name.startswith(f"chunks{path}/") and "/.z" not in name}
        if error == "EACCES":
            assert not read, "a link is not listed"
        else:
            assert error == "EIO"
            names = {name: name.removeprefix(f"chunks{path}/") for name in read}
            stored = {name for name, each in names.items() if {f"{path[1:]}/c/{each}", f"{path[1:]}/{each}"} & keys}
            assert stored and all(read[name].error == "EIO" for name in stored)
            # Elements that are not stored are fill value.
            assert all(each.error == "EIO" or len(set(each.data)) == 1 for name, each in read.items() if name not in stored)


def assert_bad_shard(path: str, found: dict[str, Found]) -> None:
    """Assert errors for the whole array and for each chunk with a wrong index entry; an impossible entry is not listed."""
    assert found[f"npy{path}.npy"].error == "EIO"
    for index in range(2):
        chunk = found.get(f"chunks{path}/{index}")
        if index not in BAD_SHARDS[path]:
            assert chunk is not None and chunk.data == bad_shard_chunk(index)
        elif path == "/wrong_nbytes":
            assert chunk is not None and chunk.error == "EIO"
        else:
            assert chunk is None


def bad_shard_chunk(index: int) -> bytes:
    """Return the content of a readable chunk of `v3_bad_shards`."""
    return np.arange(2 * index, 2 * index + 2, dtype="<i4").tobytes()


def write_huge(folder: Path) -> Path:
    """Write valid arrays of extreme size, and one small one. Only ``ok`` has chunks."""
    huge: dict[str, tuple[tuple[int, ...], tuple[int, ...], str]] = {
        "as_large_as_a_file_can_be": ((2**63 - 129,), (1,), "|u1"),
        "larger_than_a_file": ((2**62, 8), (1, 8), "<f8"),
        "no_such_number": ((2**62,) * 5, (1,) * 5, "<f8"),
        "row_of_many_chunks": ((2, 2**40), (2, 1), "|u1"),
        "row_of_many_chunks_that_fits": ((2, 2**27), (2, 1), "|u1"),
        "row_larger_than_any_disk": ((2**20, 2**30), (2**20, 1), "<f8"),
        "columns": ((2**31, 2**31), (1, 2**20), "|u1"),
        "empty": ((0, 2**62), (1, 1), "<i4"),
        "more_dimensions_than_numpy": ((1,) * 65, (1,) * 65, "<i4"),
        "thousands_of_dimensions": ((1,) * 5000, (1,) * 5000, "<i4"),
        "large_elements": ((4,), (2,), "|S16000000"),
        "ok": ((4,), (4,), "<i4"),
    }
    for name, (shape, chunks, dtype) in huge.items():
        (folder / name).mkdir(parents=True)
        fill_value = None if dtype.startswith("|S") else 7
        (folder / name / ".zarray").write_bytes(array_document(shape, chunks, dtype, fill_value=fill_value))
    (folder / ".zgroup").write_text(json.dumps({"zarr_format": 2}))
    (folder / "ok" / "0").write_bytes(np.arange(4, dtype="<i4").tobytes())
    deep = folder / "/".join(["deep"] * 40)
    deep.mkdir(parents=True)
    (deep / ".zgroup").write_text(json.dumps({"zarr_format": 2}))
    return folder


def check_huge(found: dict[str, Found]) -> None:
    """Assert the requirements on a survey of `write_huge`."""
    assert np.load(io.BytesIO(found["npy/ok.npy"].data)).tolist() == [0, 1, 2, 3]
    assert found["npy/as_large_as_a_file_can_be.npy"].size == 2**63 - 1
    for name in ("larger_than_a_file", "no_such_number"):
        assert b"exceeds the maximum file size" in found[f"npy/{name}.unsupported.txt"].data
    for name in ("more_dimensions_than_numpy", "thousands_of_dimensions"):
        assert b"dimensions" in found[f"npy/{name}.unsupported.txt"].data
    for name in ("row_of_many_chunks", "row_of_many_chunks_that_fits", "columns"):
        # The beginning (with the header), the middle and the end.
        assert set(found[f"npy/{name}.npy"].data[128:]) == {7}
    assert np.frombuffer(found["npy/row_larger_than_any_disk.npy"].data[128:], "<f8").tolist() == [7.0] * 1520
    assert found["npy/empty.npy"].size == 128
    assert all(each.error is None for each in found.values())
    assert {"chunks/columns/.zarray", "chunks/no_such_number/.zarray", "chunks/ok/0"} <= set(found)
    assert "chunks/" + "deep/" * 40 + ".zgroup" in found


def _is_empty(folder: Path) -> bool:
    return not any(folder.iterdir())
