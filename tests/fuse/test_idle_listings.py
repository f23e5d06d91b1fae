"""Listings that nobody continues: what is left of one suffices to continue it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import pytest
import trio

from zarrfs.errors import StoreError
from zarrfs.fuse import idle_listings
from zarrfs.fuse.handles import OpenDirectory
from zarrfs.fuse.idle_listings import IdleListings
from zarrfs.fuse.inode import Inode
from zarrfs.vfs.node import Entry

NAMES = [f"k{number}" for number in range(20)]


class Folder:
    """A folder of these ``names``. ``fails``: its next listing does."""

    def __init__(self, names: Sequence[str] = NAMES) -> None:
        self.names = list(names)
        self.fails = False

    async def entries(self) -> AsyncGenerator[Entry]:
        if self.fails:
            self.fails = False
            raise StoreError("no answer")
        for name in list(self.names):
            yield name, False, 1, 0, True

    def opened(self) -> OpenDirectory:
        return OpenDirectory(Inode(1, None, ""), self.entries(), 0)

    def remove(self, listing: OpenDirectory, *names: str) -> None:
        for name in names:
            self.names.remove(name)
            listing.removed.add(name)


async def read(listing: OpenDirectory, start: int, stop: int = len(NAMES)) -> list[str]:
    """Return what one request for the entries from ``start`` to before ``stop`` gets."""
    listing.answered = start
    found = [await listing.entry(position) for position in range(start, stop)]
    return [entry[0] for entry in found if entry is not None]


async def suspend(listing: OpenDirectory, knows_names: bool) -> None:
    await listing.suspend()
    if not knows_names:
        listing.forget_names()


async def go_on(listing: OpenDirectory, folder: Folder) -> None:
    await listing.resume(10, folder.entries, 0)
    await listing.entry(10)


KNOWN = pytest.mark.parametrize("knows_names", [True, False], ids=["all names", "the last names"])


@KNOWN
def test_it_is_continued_after_a_request_that_failed(knows_names: bool) -> None:
    async def main() -> None:
        folder, idle = Folder(), IdleListings()
        listing = folder.opened()
        assert await read(listing, 0, 10) == NAMES[:10]
        # The names before the last one move, so that the number of entries does not lead to the next one.
        folder.names[:9] = []
        await suspend(listing, knows_names)
        folder.fails = True
        with pytest.raises(StoreError):
            await go_on(listing, folder)
        idle.put(listing)
        for _ in range(300):
            idle.put(folder.opened())
        await idle.trim()
        assert listing.suspended
        await listing.resume(10, folder.entries, 0)
        assert await read(listing, 10) == NAMES[10:]

    trio.run(main)


@KNOWN
def test_it_is_suspended_again_before_another_entry_is_read(knows_names: bool) -> None:
    async def main() -> None:
        folder = Folder()
        listing = folder.opened()
        assert await read(listing, 0, 10) == NAMES[:10]
        folder.names[:9] = []
        for _ in range(2):
            await suspend(listing, knows_names)
            await listing.resume(10, folder.entries, 0)
            # The kernel asks again for what did not fit.
            listing.answered = 10
        assert await read(listing, 10) == NAMES[10:]

    trio.run(main)


@KNOWN
def test_no_entry_is_missing_from_an_earlier_position_on_after_removals(knows_names: bool) -> None:
    async def main() -> None:
        folder = Folder()
        listing = folder.opened()
        assert await read(listing, 0, 5) == NAMES[:5]
        assert await read(listing, 5, 10) == NAMES[5:10]
        folder.remove(listing, *NAMES[:3])
        await suspend(listing, knows_names)
        await listing.resume(4, folder.entries, 0)
        assert set(NAMES[4:]) <= set(await read(listing, 4))

    trio.run(main)


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_the_order_of_the_rest_may_change(again: bool) -> None:
    """Files that are staged are listed last, and elsewhere once they are stored."""

    async def main() -> None:
        folder = Folder()
        listing = folder.opened()
        assert await read(listing, 0, 10) == NAMES[:10]
        await listing.suspend()
        folder.names.reverse()
        await listing.resume(10, folder.entries, 0)
        got = []
        if again:
            got = await read(listing, 10, 13)
            folder.names.sort()
            await listing.suspend()
            await listing.resume(13, folder.entries, 0)
        assert sorted(got + await read(listing, 10 + len(got))) == sorted(NAMES[10:])
        assert await listing.entry(len(NAMES)) is None

    trio.run(main)


def test_names_of_all_listings_together_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        folder, idle = Folder(), IdleListings()
        monkeypatch.setattr(idle_listings, "_MAX_NAMES", 25)
        listings = [folder.opened() for _ in range(4)]
        for listing in listings:
            await read(listing, 0, 10)
            idle.put(listing)
        assert [listing.nnames for listing in listings] == [0, 0, 10, 10]
        idle.end(listings[2])
        for listing in listings:
            await listing.suspend()
            await listing.resume(10, folder.entries, 0)
            assert await read(listing, 10) == NAMES[10:]
        idle.put(listings[3])
        assert listings[3].nnames == 20

    trio.run(main)


def test_an_error_that_is_asked_for_again_collects_no_frames() -> None:
    async def main() -> None:
        folder = Folder()
        folder.fails = True
        listing, depths = folder.opened(), []
        for _ in range(4):
            with pytest.raises(StoreError, match="no answer") as caught:
                await listing.entry(0)
            depths.append(len(caught.traceback))
        assert depths[1] == depths[3]

    trio.run(main)
