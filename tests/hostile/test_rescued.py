"""Rescued data below a cache folder of another user, who renames every folder there and puts links in its place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from trio.testing import trio_test

from tests.support.attackers import EVE, act, home, needs_root, snapshot
from tests.support.claiming_mount import claiming_mount
from tests.support.lost import Lost
from zarrfs.daemon.rescue import Rescue
from zarrfs.errors import NameInvalid

pytestmark = needs_root

WHY = NameInvalid("lost")


@pytest.fixture
def eve() -> Iterator[Path]:
    """Eve's home with a folder ``cache``. Beside it is ``root``, a folder of root's."""
    with home() as place:
        act(EVE, 'mkdir "$1/cache"', place)
        yield place


# What Eve puts in the place of ``rescued``: $1 is her cache, $2 the folder of root's, $3 the name of the folder of the first loss.
TRICKS = {
    "a link": 'ln -s "$2" "$1/rescued"',
    "a folder": 'mkdir -p "$1/rescued/$3" && ln -s "$2" "$1/rescued/$3/files" && ln -s "$2/new" "$1/rescued/$3/lost.jsonl"',
    "a link below": 'mkdir "$1/rescued" && ln -s "$2" "$1/rescued/$3"',
    "a file": 'touch "$1/rescued"',
}


@pytest.mark.parametrize("trick", TRICKS)
@trio_test
async def test_what_is_lost_later_is_beside_what_was_lost_before(trick: str, eve: Path) -> None:
    cache, root = eve / "cache", eve.parent / "root"
    before = snapshot(eve.parent / "root")
    rescue = Rescue(str(cache), "store")
    first = Lost("raw/first")
    folder = Path(await rescue.value(first, WHY))
    assert (folder / "files/raw/first").read_bytes() == b"hers\n"
    act(EVE, 'mv "$1/rescued" "$1/aside" && ' + TRICKS[trick], cache, root, folder.name)
    first.ident = "raw/evil"
    await rescue.value(first, WHY)
    await rescue.value(Lost("raw/other"), WHY)
    assert snapshot(eve.parent / "root") == before
    saved = {path.name for path in (cache / "aside").rglob("files/raw/*")}
    assert saved == {"first", "evil", "other"}


@pytest.mark.parametrize("trick", TRICKS)
@trio_test
async def test_something_of_somebody_else_under_that_name_costs_no_data(trick: str, eve: Path) -> None:
    cache, root = eve / "cache", eve.parent / "root"
    before = snapshot(root)
    act(EVE, TRICKS[trick], cache, root, "x")
    folder = Path(await Rescue(str(cache), "store").value(Lost("raw/other"), WHY))
    assert (folder / "files/raw/other").read_bytes() == b"hers\n"
    assert folder.parent.parent == cache and folder.parent.name.startswith("rescued-")
    assert folder.parent.stat().st_uid == os.geteuid() and folder.parent.stat().st_mode & 0o777 == 0o700
    assert snapshot(root) == before


@pytest.mark.fuse
@trio_test
async def test_a_folder_that_another_users_mount_claims_to_be_roots_receives_nothing(eve: Path) -> None:
    act(EVE, 'mkdir "$1/cache/rescued"', eve)
    with claiming_mount(eve / "cache/rescued", EVE, {"folder/file": b""}):
        folder = Path(await Rescue(str(eve / "cache"), "store").value(Lost("raw/other"), WHY))
    assert folder.parent.name.startswith("rescued-") and (folder / "files/raw/other").read_bytes() == b"hers\n"
