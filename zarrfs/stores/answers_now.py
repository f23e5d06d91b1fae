"""Operations of a store that answer without waiting: for callers to whom waiting costs more than the answer."""

from __future__ import annotations

from collections.abc import Sequence

from zarrfs.buffers import Buffer
from zarrfs.keys import ByteRange, Key, Prefix
from zarrfs.stores.values import Answer, DirEntry, Generation, KeyStat, answer

ANSWERS_NOW = 32
"""Number of look-ups that take about 1 ms where none waits."""


class WouldWait(Exception):
    """The operation cannot answer without waiting; the caller uses the form that waits."""


class AnswersNow:
    """Each method raises `WouldWait`, with no effect, unless the answer is in memory or in the page cache.

    The fallbacks always raise. A transformer has to forward them explicitly.
    """

    def get_partial_values_now(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        """Return `Store.get_partial_values`."""
        raise WouldWait

    def get_with_stat_now(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        """Return `Store.get_with_stat`."""
        raise WouldWait

    def get_many_now(self, key_ranges: Sequence[tuple[Key, ByteRange]]) -> list[Answer]:
        """Return `Store.get_many` if all answers are available."""
        if len(key_ranges) > ANSWERS_NOW:
            raise WouldWait
        return [answer(self.get_with_stat_now, *each) for each in key_ranges]

    def stat_now(self, key: Key) -> KeyStat | None:
        """Return `Store.stat`."""
        raise WouldWait

    def list_dir_now(self, prefix: Prefix) -> Sequence[DirEntry]:
        """Return all entries of `Store.list_dir`, if they are few."""
        raise WouldWait

    def has_changes_now(self) -> bool:
        """Return True if changes by other programs are known here that `Store.watch` has not reported yet. Does not raise `WouldWait`."""
        return False

    def prefix_mtime_ns_now(self, prefix: Prefix) -> int | None:
        """Return `Store.prefix_mtime_ns`, where None means that there is no such prefix."""
        raise WouldWait
