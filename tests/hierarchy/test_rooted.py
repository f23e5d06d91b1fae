"""A hierarchy with an entry point below the root of the store behaves as it does at the root."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
from trio.testing import trio_test

from tests.hierarchy.test_roots import ARRAY_2022, DRAFT_ARRAY, ENTRY_2019, ENTRY_2022, over
from tests.reports.test_check import checked
from tests.support.small_stores import write
from tests.support.stores import contents
from zarrfs.dialects.base import Edit, Layout
from zarrfs.dialects.rooted import RootedLayout
from zarrfs.hierarchy import roots
from zarrfs.keys import NodePath

AT = pytest.mark.parametrize("at", ["", "in/side/"])
GROUP = b'{"extensions": [], "attributes": {"is": "a group"}}'
BOTH = {
    "v3_2019": {
        "zarr.json": ENTRY_2019,
        "meta/root/g.array": DRAFT_ARRAY,
        "meta/root/g.group": GROUP,
        "meta/root/g/b.array": DRAFT_ARRAY,
        "data/g/0": bytes(4),
        "data/g/b/0": bytes(4),
    },
    "v3_2022": {
        "zarr.json": ENTRY_2022,
        "meta/root/g.array.json": ARRAY_2022,
        "meta/root/g.group.json": GROUP,
        "meta/root/g/b.array.json": ARRAY_2022,
        "data/root/g/c0": bytes(4),
        "data/root/g/b/c0": bytes(4),
    },
}
WITH_DAMAGED_COPY = {
    "zarr.json": ENTRY_2022,
    "meta/root/a.array.json": ARRAY_2022,
    "meta/root/consolidated.group.json": b'{"attributes": {}}',
    "meta/root/consolidated/.zmetadata": b'{"zarr_consolidated_format": 2, "metadata": {}}',
}


def test_every_part_of_a_layout_is_that_of_the_hierarchy() -> None:
    # They follow from dialect and prefix, which are those of the hierarchy.
    derived = {"per_node", "edit_lock", "require_writable", "_fill_member"}
    parts = {name for name, part in vars(Layout).items() if inspect.isfunction(part) or isinstance(part, property)}
    assert parts - vars(RootedLayout).keys() == derived


@AT
@pytest.mark.parametrize("with_members", [False, True])
@pytest.mark.parametrize("dialect", BOTH)
@trio_test
async def test_an_array_is_erased_and_the_group_at_its_path_stays(dialect: str, with_members: bool, at: str) -> None:
    """The group was erased with it, or no array could be erased from a group with members."""
    values = {at + key: value for key, value in BOTH[dialect].items() if with_members or "/b" not in key}
    async with over(values) as store:
        await store.editor.erase(NodePath(f"/{at}g"))
        left = {key: value for key, value in values.items() if ".group" in key or "/b" in key or key.endswith("zarr.json")}
        assert await contents(store.inner) == left
        assert await store.kind(f"/{at}g") == "GroupNode"


@AT
def test_a_damaged_copy_is_bad(at: str, tmp_path: Path) -> None:
    report = checked(write(tmp_path, {at + key: value for key, value in WITH_DAMAGED_COPY.items()}))
    (finding,) = report.bad.first
    assert (finding.path, finding.key) == (f"/{at}".rstrip("/") or "/", f"{at}meta/root/consolidated/.zmetadata")
    assert finding.reason == "consolidated copy unreadable: zarr_consolidated_format must be 1, not 2"


@pytest.mark.logs("outdated")
@AT
@trio_test
async def test_a_damaged_copy_that_an_edit_cannot_follow_is_logged(at: str, caplog: pytest.LogCaptureFixture) -> None:
    async with over({at + key: value for key, value in WITH_DAMAGED_COPY.items()}) as store:
        await store.editor.amend(NodePath(f"/{at}a"), Edit(attributes={"by": "us"}))
    (logged,) = [each.getMessage() for each in caplog.records if "outdated" in each.message]
    assert logged.startswith(f"{at}meta/root/consolidated/.zmetadata: consolidated copy outdated from here on")


@pytest.mark.logs("consolidated copy not read")
@trio_test
async def test_copies_of_hierarchies_below_the_root_have_one_limit_together(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each was kept: twelve links to one file of 5 MB took half a gigabyte."""
    copied = {"zarr_consolidated_format": 1, "metadata": {"meta/root/only.array.json": json.loads(ARRAY_2022)}}
    values = {
        "zarr.json": ENTRY_2022,
        "meta/root/a.array.json": ARRAY_2022,
        "meta/root/consolidated.group.json": b'{"attributes": {}}',
        "meta/root/consolidated/.zmetadata": json.dumps(copied).encode(),
        # Of a member of the copy.
        "data/root/only/c0": bytes(4),
    }
    nbytes = len(values["zarr.json"]) + len(values["meta/root/consolidated/.zmetadata"])
    monkeypatch.setattr(roots, "_MAX_COPIED", 2 * nbytes)
    async with over({f"{at}/{key}": value for at in "pqr" for key, value in values.items()}) as store:
        kinds = {at: [await store.kind(f"/{at}{name}") for name in ("", "/a", "/only")] for at in "pqr"}
        assert [kinds[at] for at in "pq"] == [["GroupNode", "v3_2022", "v3_2022"]] * 2
        assert kinds["r"][:2] == ["GroupNode", "v3_2022"]
        assert kinds["r"][2] != "v3_2022"
    (logged,) = [each.getMessage() for each in caplog.records if "copy not read" in each.message]
    assert logged.startswith("r/: consolidated copy not read")
