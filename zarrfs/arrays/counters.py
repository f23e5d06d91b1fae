"""Counters of the hierarchy. They do not depend on the machine, so tests and users may compare them with bounds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class HierarchyCounters:
    """Counts since the start of the mount."""

    chunks_decoded: int = 0
    chunks_encoded: int = 0
    shard_indexes_read: int = 0
    slabs_filled: int = 0
    slabs_spilled: int = 0
    nodes_parsed: int = 0
