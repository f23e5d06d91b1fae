"""What new arrays are stored as."""

from __future__ import annotations

import json

import numpy as np
import pytest

from zarrfs.dialects.v2.dialect import PLUGIN as V2
from zarrfs.dialects.v3.dialect import PLUGIN as V3
from zarrfs.errors import UsageError
from zarrfs.hierarchy.new_arrays import NewArrays
from zarrfs.keys import NodePath, Prefix
from zarrfs.model.data_type import from_numpy

FLOAT = from_numpy(np.dtype("<f4"))
PATH = NodePath("/a")


def document(new: NewArrays, dialect: object, shape: tuple[int, ...], **more: object) -> dict[str, object]:
    layout = dialect.create(Prefix(""))  # type: ignore[attr-defined]
    written = layout.format(new.node(PATH, layout, shape=shape, data_type=FLOAT, **more))
    found: dict[str, object] = json.loads(list(written.values())[-1])
    return found


def test_by_default_an_array_is_as_zarr_python_makes_it() -> None:
    v3 = document(NewArrays(), V3, (8192, 8192))
    assert v3["chunk_grid"] == {"name": "regular", "configuration": {"chunk_shape": [512, 512]}}
    assert [codec["name"] for codec in v3["codecs"]] == ["bytes", "zstd"]  # type: ignore[attr-defined]
    assert v3["fill_value"] == 0
    v2 = document(NewArrays(), V2, (8192, 8192))
    assert v2["chunks"] == [512, 512]
    assert v2["compressor"]["id"] == "zstd"  # type: ignore[index]
    assert v2["order"] == "C"


def test_fortran_order_is_kept_in_either_dialect() -> None:
    assert document(NewArrays(), V2, (4, 5), order="F")["order"] == "F"
    v3 = document(NewArrays(), V3, (4, 5), order="F")
    assert v3["codecs"][0] == {"name": "transpose", "configuration": {"order": [1, 0]}}  # type: ignore[index]


@pytest.mark.parametrize(
    ("chunks", "shape", "expected"),
    [
        ("64x32", (100, 100), [64, 32]),
        ("64,32", (100, 100), [64, 32]),
        ("64", (100, 50), [64, 50]),
        ("none", (100, 50), [100, 50]),
        ("none", (0, 5), [1, 5]),
        # Chosen for another number of dimensions.
        ("64x32", (10,), [10]),
    ],
)
def test_chosen_chunks_are_clipped_to_the_array(chunks: str, shape: tuple[int, ...], expected: list[int]) -> None:
    v2 = document(NewArrays(chunks=chunks), V2, shape)
    assert v2["chunks"] == expected


def test_codecs_are_names_with_options() -> None:
    v3 = document(NewArrays(codecs="blosc:cname=lz4:clevel=3+crc32c"), V3, (10,))
    names = [codec["name"] for codec in v3["codecs"]]  # type: ignore[attr-defined]
    assert names == ["bytes", "blosc", "crc32c"]
    configuration = v3["codecs"][1]["configuration"]  # type: ignore[index]
    assert (configuration["cname"], configuration["clevel"], configuration["typesize"]) == ("lz4", 3, 4)
    assert document(NewArrays(codecs="none"), V2, (10,))["compressor"] is None


@pytest.mark.parametrize("codecs", ["nosuch", "zstd:level", "zstd:level=high", "pickle", "+", "bytes"])
def test_what_is_no_codec_is_refused_before_anything_is_mounted(codecs: str) -> None:
    with pytest.raises(UsageError, match="new_codecs"):
        NewArrays(codecs=codecs)


@pytest.mark.parametrize("chunks", ["0", "1x", "-1", "axb", ""])
def test_what_is_no_chunk_shape_is_refused_before_anything_is_mounted(chunks: str) -> None:
    with pytest.raises(UsageError, match="new_chunks"):
        NewArrays(chunks=chunks)
