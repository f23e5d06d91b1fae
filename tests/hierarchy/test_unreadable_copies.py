"""Edits beside a consolidated copy that cannot be read, and so cannot be updated: they succeed, and the log reports the copy."""

from __future__ import annotations

import json

import pytest
from trio.testing import trio_test

from tests.hierarchy.test_edits import consolidated, editing
from tests.support.stores import InterruptedStore, contents, fill
from zarrfs.dialects.base import Edit
from zarrfs.errors import StoreAccessDenied
from zarrfs.keys import NodePath
from zarrfs.stores.memory import MemoryStore

COPIES = {"v2": ".zmetadata", "v3_2022": "meta/root/consolidated/.zmetadata"}
COPY = {"zarr_consolidated_format": 1, "metadata": {}}


@pytest.mark.logs("outdated")
@pytest.mark.parametrize("damage", ["mark", "cut", "format", "members"])
@pytest.mark.parametrize("dialect", COPIES)
@trio_test
async def test_a_copy_that_is_unreadable_is_logged_once(dialect: str, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    """It stayed as it was without a word: zarr-python showed old attributes, and arrays that were erased."""
    copy = damaged(json.dumps(COPY).encode(), damage)
    await edited(dialect, copy, after=copy)
    (logged,) = [each.getMessage() for each in caplog.records if "outdated" in each.message]
    assert logged.startswith(f"{COPIES[dialect]}: consolidated copy outdated from here on, as it is unreadable (")


@pytest.mark.parametrize("dialect", COPIES)
@trio_test
async def test_a_readable_copy_is_not_logged(dialect: str) -> None:
    await edited(dialect, json.dumps(COPY).encode(), after=None)


async def edited(dialect: str, copy: bytes, after: bytes | None) -> None:
    """Edit a group beside a consolidated copy, and remove it; ``after``: what is then expected as the copy, if anything is."""
    async with editing(new=dialect) as e:
        await e.group("/a")
        await e.group("/b")
        values = await contents(e.store) | {COPIES[dialect]: copy}
    async with editing(values, new=dialect) as e:
        await e.editor.amend(NodePath("/a"), Edit(attributes={"by": "us"}))
        await e.editor.erase(NodePath("/a"))
        await e.group("/c")
        assert after is None or (await contents(e.store))[COPIES[dialect]] == after


def damaged(copy: bytes, damage: str) -> bytes:
    if damage == "mark":
        return b"\xef\xbb\xbf" + copy
    if damage == "cut":
        return copy[: len(copy) // 2]
    change = {"zarr_consolidated_format": 2} if damage == "format" else {"metadata": []}
    return json.dumps(json.loads(copy) | change).encode()


class OfOthers(InterruptedStore):
    """A store whose root's copy only others may write."""

    async def interrupt(self, operation: str, target: str) -> None:
        if operation == "set" and target == ".zmetadata":
            raise StoreAccessDenied(f"writing {target!r}: not permitted", key=target)


@pytest.mark.logs("outdated")
@trio_test
async def test_what_is_new_is_missing_in_a_copy_of_others_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with editing(new="v2") as e:
        for path in ("/g/a", "/k/b"):
            await e.array(path)
        values = consolidated(consolidated(await contents(e.store), "g"))
    store = MemoryStore()
    await fill(store, values)
    async with editing(new="v2", inner=OfOthers(store)) as e:
        await e.array("/g/n")
        await e.editor.rename(NodePath("/g/n"), NodePath("/g/m"))
        found = await contents(store)
        assert found[".zmetadata"] == values[".zmetadata"]
        members = json.loads(found["g/.zmetadata"])["metadata"]
        assert {name for name in members if not name.endswith(".zattrs")} == {".zgroup", "a/.zarray", "m/.zarray"}
        # One that others would look for in vain stays.
        with pytest.raises(StoreAccessDenied):
            await e.editor.erase(NodePath("/g/a"))
        assert "g/a/.zarray" in await contents(store)
    (logged,) = [each.getMessage() for each in caplog.records if "outdated" in each.message]
    assert logged.startswith(".zmetadata: consolidated copy outdated from here on, as it is not writable (")
