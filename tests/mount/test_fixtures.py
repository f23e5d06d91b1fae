"""Stores written by other software, through the kernel.

``npy/`` is compared bit for bit, ``chunks/`` is opened by zarr-python as Zarr v2, ``raw/`` is compared by ``diff -r``. Most stores are
beside each other in one mounted folder; a store whose root matters is mounted alone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.cases import Case, cases
from tests.support.comparing import (
    assert_expected,
    assert_expected_in_zarr,
    assert_expected_objects,
    folder_cases,
    is_object,
    npy_path,
    readable_by_zarr,
    reason_path,
    shown_chunks,
    tree_below,
    why_left_out,
)
from tests.support.mounting import Mounted, mounted, run

pytestmark = pytest.mark.fuse

DRAFTS = ("v3_2019", "v3_2020_zarrita", "v3_draft2022_seed", "v3_draft2022_zarrpython", "v3_draft2022_gdal")
ALL = folder_cases([*cases("v2"), *(case for layout in DRAFTS for case in cases(layout)), *cases("v3_final")])
ALONE = [param for param in ALL if any(node["path"] == "/" and node["kind"] == "array" for node in param.values[0].nodes())]
ALONE += [param for param in ALL if param.values[0].name.endswith("/consolidated")]
BESIDE = [param for param in ALL if param not in ALONE]
READ_ONLY = ("--read-only",)


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """All stores in one folder, each under its name."""
    folder = tmp_path_factory.mktemp("together")
    for param in BESIDE:
        case = param.values[0]
        shutil.copytree(case.path, folder / case.name, symlinks=True)
    with mounted(folder, *READ_ONLY) as mount:
        yield mount


@pytest.mark.parametrize("case", BESIDE)
def test_one_of_many(case: Case, together: Mounted) -> None:
    views = {view: together.path / view / case.name for view in ("raw", "chunks", "npy")}
    compare(case, views)


@pytest.mark.parametrize("case", ALONE)
def test_alone(case: Case) -> None:
    with mounted(case.path, *READ_ONLY) as mount:
        compare(case, {view: mount.path / view for view in ("raw", "chunks", "npy")})


def test_every_case_is_here() -> None:
    assert len(BESIDE) + len(ALONE) == len(ALL) >= 20


def compare(case: Case, views: dict[str, Path]) -> None:
    for node in case.nodes("array"):
        for view in ("chunks", "npy"):
            if (reason := why_left_out(node, view)) is not None:
                assert reason in (views[view] / reason_path(node)).read_text()
        if is_object(node):
            if why_left_out(node, "chunks") is None:
                found = tree_below(views["chunks"] / node["path"].strip("/"))
                chunks = {name: data for name, data in found.items() if not name.startswith(".")}
                assert_expected_objects(case, node, found[".zarray"], chunks)
            continue
        path = views["npy"] / npy_path(case, node)
        assert_expected(case, node, np.load(path, allow_pickle=False))
        shown = {name for name in os.listdir(views["chunks"] / node["path"].strip("/")) if not name.startswith(".")}
        assert shown == shown_chunks(case, node)
        if node["shape"] and 0 not in node["shape"]:
            assert_expected(case, node, np.asarray(np.load(path, mmap_mode="r")))
    assert assert_expected_in_zarr(case, str(views["chunks"])) == len(readable_by_zarr(case))
    run("diff", "-r", case.path, views["raw"])
