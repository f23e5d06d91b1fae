"""Counts of store operations: independent of the machine, so tests and users can compare them with a bound."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StoreCounters:
    """Operations started since the store was opened, by kind, and bytes of values read and written."""

    get: int = 0
    get_partial_values: int = 0
    get_many: int = 0
    stat: int = 0
    set: int = 0
    set_partial_values: int = 0
    copy: int = 0
    erase: int = 0
    erase_values: int = 0
    erase_prefix: int = 0
    sync: int = 0
    exclusive: int = 0
    rename: int = 0
    rename_prefix: int = 0
    make_prefix: int = 0
    remove_prefix: int = 0
    set_times: int = 0
    list_prefix: int = 0
    list_dir: int = 0
    prefix_exists: int = 0
    prefix_mtime_ns: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    @property
    def changes(self) -> int:
        """Number of operations that change a store."""
        several = self.set_partial_values + self.erase_values + self.erase_prefix + self.rename_prefix
        return self.set + self.copy + self.erase + self.rename + several + self.make_prefix + self.remove_prefix + self.set_times
