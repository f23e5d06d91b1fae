"""One file, several handles, and a store that fails now and then, compared with two byte strings: the published and the staged value."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from tests.support.contents import FakeContent
from tests.support.length import unhurried
from zarrfs.errors import ChunkSizeMismatch, FileTooLarge, NoSuchEntry, StoreFull
from zarrfs.vfs.file import StagedFile
from zarrfs.vfs.node import Handle, OpenFlags
from zarrfs.vfs.staging import StagingArea

T = TypeVar("T")

OFFSETS = st.integers(0, 12)
DATA = st.binary(min_size=1, max_size=6)


class Model:
    """The shortest description of such a file. ``staged`` is None if nothing is staged."""

    def __init__(self, published: bytes | None, fixed_size: int | None) -> None:
        self.published = published
        self.staged: bytes | None = None
        self.only_emptied = False
        self.full = False
        self.fixed_size = fixed_size

    @property
    def seen(self) -> bytes | None:
        return self.published if self.staged is None else self.staged

    def change(self, value: bytes, *, only_emptied: bool = False) -> None:
        self.staged, self.only_emptied = value, only_emptied

    def publish(self) -> type[Exception] | None:
        if self.staged is None:
            return None
        self.only_emptied = False
        if self.fixed_size not in (None, len(self.staged)):
            return ChunkSizeMismatch
        if self.full:
            return StoreFull
        self.published, self.staged = self.staged, None
        return None


class StagedFileMachine(RuleBasedStateMachine):
    handles = Bundle("handles")

    @initialize(value=st.none() | st.binary(max_size=10), fixed_size=st.none() | st.just(8), spills=st.booleans())
    def begin(self, value: bytes | None, fixed_size: int | None, spills: bool) -> None:
        if fixed_size is not None and value is not None:
            value = value[:1] * fixed_size or bytes(fixed_size)
        self.model = Model(value, fixed_size)
        self.content = FakeContent(value, fixed_size=fixed_size)
        self.lost: list[str] = []
        self.expected_lost = 0
        self.area = StagingArea(on_failure=lambda ident, error: self.lost.append(ident), spill_nbytes=3 if spills else 1 << 20)
        self.file = StagedFile(self.area, self.content)
        self.open = 0

    @rule(target=handles, write=st.booleans(), truncate=st.booleans())
    def open_it(self, write: bool, truncate: bool) -> Handle | None:
        flags = OpenFlags(read=True, write=write, truncate=truncate)
        if self.model.seen is None:
            if not write:
                self._fails(NoSuchEntry, self.file.open, flags)
                return None
            handle = self._do(self.file.create, flags)
            self.model.change(b"", only_emptied=True)
        else:
            handle = self._do(self.file.open, flags)
            if write and truncate:
                self.model.change(b"", only_emptied=True)
        self.open += 1
        handle.can_write = write  # type: ignore[attr-defined]
        return handle

    @rule(handle=handles, offset=OFFSETS, data=DATA)
    def write(self, handle: Handle | None, offset: int, data: bytes) -> None:
        if handle is None or not handle.can_write:  # type: ignore[attr-defined]
            return
        if self.model.fixed_size is not None and offset + len(data) > self.model.fixed_size:
            self._fails(FileTooLarge, handle.write, offset, data)
            return
        assert self._do(handle.write, offset, data) == len(data)
        before = (self.model.seen or b"").ljust(offset, b"\0")
        self.model.change(before[:offset] + data + before[offset + len(data) :])

    @rule(handle=handles, size=OFFSETS)
    def truncate(self, handle: Handle | None, size: int) -> None:
        if handle is None or not handle.can_write:  # type: ignore[attr-defined]
            return
        if self.model.fixed_size is not None and size > self.model.fixed_size:
            self._fails(FileTooLarge, handle.truncate, size)
            return
        self._do(handle.truncate, size)
        self.model.change((self.model.seen or b"")[:size].ljust(size, b"\0"), only_emptied=size == 0)

    @precondition(lambda self: self.model.seen is not None)
    @rule(size=OFFSETS)
    def truncate_by_path(self, size: int) -> None:
        if self.model.fixed_size is not None and size > self.model.fixed_size:
            self._fails(FileTooLarge, self.file.truncate, size)
            return
        was_clean = self.model.staged is None
        self.model.change((self.model.seen or b"")[:size].ljust(size, b"\0"), only_emptied=size == 0)
        self._ends_as(self.model.publish(), self.file.truncate, size)
        if not self.open or was_clean:
            # Refused without a previous write.
            self.model.staged = None

    @rule(handle=handles)
    def flush(self, handle: Handle | None) -> None:
        if handle is None:
            return
        writes: bool = handle.can_write  # type: ignore[attr-defined]
        expected = self.model.publish() if writes and not self.model.only_emptied else None
        self._ends_as(expected, handle.flush)

    @rule(handle=handles)
    def fsync(self, handle: Handle | None) -> None:
        if handle is not None:
            self._ends_as(self.model.publish(), handle.fsync)

    @rule(handle=consumes(handles))
    def release(self, handle: Handle | None) -> None:
        if handle is None:
            return
        self.open -= 1
        if not self.open:
            self.expected_lost += self.model.publish() is not None
            self.model.staged = None
        self._do(handle.release)

    @rule(handle=handles, offset=OFFSETS, size=OFFSETS)
    def read(self, handle: Handle | None, offset: int, size: int) -> None:
        if handle is not None and self.model.seen is not None:
            assert bytes(self._do(handle.read, offset, size)) == self.model.seen[offset : offset + size]
            assert self._do(handle.attributes).size == len(self.model.seen)

    @rule(full=st.booleans())
    def fill_or_free(self, full: bool) -> None:
        self.model.full = full
        self.content.refuses = StoreFull("full") if full else None

    @invariant()
    def the_store_has_what_was_published(self) -> None:
        if hasattr(self, "model"):
            assert self.content.value == self.model.published
            assert len(self.lost) == self.expected_lost
            assert self.area.open_handles == self.open
            assert self.area.dirty_nbytes == len(self.model.staged or b"")
            staged = self.area.get(self.content.ident)
            assert (staged is not None) == (self.open > 0)
            assert staged is None or staged.unpublished == (self.model.staged is not None)

    # --- helpers ------------------------------------------------------------------------------------------------------------

    def _do(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        return trio.run(function, *args)

    def _fails(self, expected: type[Exception], function: Callable[..., Awaitable[object]], *args: object) -> None:
        with pytest.raises(expected):
            trio.run(function, *args)

    def _ends_as(self, expected: type[Exception] | None, function: Callable[..., Awaitable[object]], *args: object) -> None:
        if expected is None:
            trio.run(function, *args)
        else:
            self._fails(expected, function, *args)


StagedFileMachine.TestCase.settings = settings(unhurried, stateful_step_count=25)
TestStagedFile = pytest.mark.logs("write failed, data lost")(StagedFileMachine.TestCase)
