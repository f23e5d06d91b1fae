"""Counts of work on arrays and documents: independent of the machine, so tests and users can compare them with a bound."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class WorkCounters:
    """Operations since the start of the mount, by kind."""

    chunks_decoded: int = 0
    chunks_encoded: int = 0
    shard_indexes_read: int = 0
    slabs_filled: int = 0
    slabs_spilled: int = 0
    nodes_parsed: int = 0
