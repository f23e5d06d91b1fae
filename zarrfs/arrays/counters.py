"""What the hierarchy has done, in counts: they do not depend on the machine, so tests and users may hold them against a bound."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class HierarchyCounters:
    """Counts since the mount began."""

    chunks_decoded: int = 0
    chunks_encoded: int = 0
    shard_indexes_read: int = 0
    slabs_filled: int = 0
    slabs_spilled: int = 0
    nodes_parsed: int = 0
