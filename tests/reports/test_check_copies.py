"""``zarrfs check`` and consolidated copies: zarr-python and xarray open nothing in a group whose copy is damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.reports.test_check import checked
from tests.support.mounting import ROOT
from tests.support.small_stores import SMALL, write
from zarrfs.reports.findings import Report

COPY = {
    "zarr_consolidated_format": 1,
    "metadata": {key: json.loads(value) for key, value in SMALL.items() if key.startswith(".z") or "/.z" in key},
}


def bad(report: Report) -> list[tuple[str, str | None, str]]:
    return [(finding.path, finding.key, finding.reason) for finding in report.bad.first]


@pytest.mark.parametrize("group", ["", "g/"])
@pytest.mark.parametrize(
    ("copy", "reason"),
    [
        (b"", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (json.dumps(COPY | {"zarr_consolidated_format": 2}).encode(), "zarr_consolidated_format must be 1, not 2"),
        (json.dumps(COPY | {"metadata": {"a/.zattrs": True}}).encode(), '"a/.zattrs" must be an object, not true'),
    ],
)
def test_a_damaged_copy_is_bad(tmp_path: Path, group: str, copy: bytes, reason: str) -> None:
    values = {".zgroup": SMALL[".zgroup"]} | {group + key: value for key, value in SMALL.items()}
    store = write(tmp_path, values | {f"{group}.zmetadata": copy})
    path = "/" + group.rstrip("/")
    report = checked(store)
    assert bad(report) == [(path, f"{group}.zmetadata", f"consolidated copy unreadable: {reason}")]
    # It hides nothing.
    assert (report.arrays, report.chunks) == (2, 5)


def test_a_sound_copy_is_well(tmp_path: Path) -> None:
    store = write(tmp_path, SMALL | {".zmetadata": json.dumps(COPY).encode()})
    assert not bad(checked(store))


def test_the_folder_of_a_copy_of_2022_is_no_node_with_an_invalid_name() -> None:
    """zarr-python writes a document of a group for it."""
    report = checked(ROOT / "tests/cases/v3_draft2022_zarrpython/filters/store")
    assert report.complete and not report.misnamed.first and not report.bad.first
