"""Requests of well-known programs, replayed on the staging machine."""

from __future__ import annotations

import pytest
import trio

from tests.support.contents import FakeContent
from tests.support.traces import TRACES, Request, Trace
from zarrfs.errors import ChunkSizeMismatch, FileTooLarge, StoreFull
from zarrfs.vfs.file import StagedFile
from zarrfs.vfs.node import Handle, OpenFlags
from zarrfs.vfs.staging import StagingArea


async def replay(file: StagedFile, requests: tuple[Request, ...]) -> None:
    """Send requests to the handle opened last; releasing it returns to the one before."""
    handles: list[Handle] = []
    for request in requests:
        match request:
            case ("open",):
                handles.append(await file.open(OpenFlags(write=True)))
            case ("trunc",):
                handles.append(await file.open(OpenFlags(write=True, truncate=True)))
            case ("create",):
                handles.append(await file.create(OpenFlags(write=True)))
            case ("write", int(offset), bytes(data)):
                await handles[-1].write(offset, data)
            case ("truncate", int(size)):
                await handles[-1].truncate(size)
            case ("truncate by path", int(size)):
                await file.truncate(size)
            case ("flush",):
                await handles[-1].flush()
            case ("fsync",):
                await handles[-1].fsync()
            case ("release",):
                await handles.pop().release()
            case _:
                raise AssertionError(request)
    assert not handles


@pytest.mark.parametrize(
    ("trace", "fixed"),
    [
        pytest.param(trace, fixed, id=f"{trace.name}-{'fixed' if fixed else 'any'} size")
        for trace in TRACES
        for fixed in (False, True)
        if not fixed or trace.before is None or len(trace.before) == len(trace.after)
    ],
)
def test_a_trace(trace: Trace, fixed: bool) -> None:
    async def main() -> None:
        area = StagingArea()
        content = FakeContent(trace.before, fixed_size=len(trace.after) if fixed else None)
        await replay(StagedFile(area, content), trace.requests)
        assert content.value == trace.after
        assert content.published == trace.sets
        assert area.open_handles == 0

    trio.run(main)


def test_sed_writes_a_file_of_its_own_and_renames_it() -> None:
    async def main() -> None:
        area = StagingArea()
        new, old = FakeContent(ident="raw/sedXYZ"), FakeContent(b"abcd", ident="raw/k")
        reader = await StagedFile(area, old).open(OpenFlags())
        await replay(StagedFile(area, new), (("create",), ("write", 0, b"aBcd"), ("flush",), ("release",)))
        async with area.renaming(new.ident, old), area.unnaming(old.ident):
            old.value, new.value = new.value, None
        assert await reader.read(0, 9) == b"abcd"
        await reader.flush()
        await reader.release()
        assert (new.published, old.published, old.value) == (1, 0, b"aBcd")

    trio.run(main)


def test_a_short_chunk() -> None:
    async def main() -> None:
        content = FakeContent(b"abcd", fixed_size=4)
        lost: list[str] = []
        file = StagedFile(StagingArea(on_failure=lambda ident, error: lost.append(ident)), content)
        with pytest.raises(ChunkSizeMismatch):
            await replay(file, (("trunc",), ("flush",), ("write", 0, b"x\n"), ("flush",)))
        assert content.value == b"abcd"

    trio.run(main)


def test_a_chunk_too_long() -> None:
    async def main() -> None:
        content = FakeContent(b"abcd", fixed_size=4)
        with pytest.raises(FileTooLarge):
            await replay(StagedFile(StagingArea(), content), (("open",), ("write", 0, b"abcde")))
        assert content.value == b"abcd"

    trio.run(main)


@pytest.mark.logs("write failed, data lost")
def test_no_space_on_the_way_and_after_freeing_some() -> None:
    async def main() -> None:
        content = FakeContent(b"old")
        lost: list[str] = []
        file = StagedFile(StagingArea(on_failure=lambda ident, error: lost.append(ident)), content)
        content.refuses = StoreFull("full")
        handle = await file.open(OpenFlags(write=True, truncate=True))
        await handle.write(0, b"new value")
        with pytest.raises(StoreFull):
            await handle.flush()
        await handle.release()
        assert (content.value, lost) == (b"old", ["raw/k"])
        content.refuses = None
        await replay(file, (("trunc",), ("write", 0, b"new value"), ("flush",), ("release",)))
        assert content.value == b"new value"

    trio.run(main)
