"""Findings of ``zarrfs check``, reported during its work and at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from zarrfs.errors import UNSUPPORTED
from zarrfs.hierarchy.unforeseen import reason_of
from zarrfs.model.chunk_grid import Coords

MAX_LISTED = 10_000


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding on the node at ``path``: on its documents or, with ``key``, on the chunk ``coords`` or the shard ``shard``."""

    path: str
    reason: str
    key: str | None = None
    coords: Coords | None = None
    shard: Coords | None = None

    def to_json(self) -> dict[str, Any]:
        """Return JSON values only."""
        members: dict[str, Any] = {"path": self.path, "reason": self.reason}
        if self.key is not None:
            members["key"] = self.key
        for name, coords in (("coords", self.coords), ("shard", self.shard)):
            if coords is not None:
                members[name] = list(coords)
        return members


@dataclass(slots=True)
class Findings:
    """The first `MAX_LISTED` findings, and the number of all."""

    first: list[Finding] = field(default_factory=list)
    count: int = 0

    def add(self, finding: Finding) -> None:
        """Add one finding."""
        self.count += 1
        if self.count <= MAX_LISTED:
            self.first.append(finding)


@dataclass(slots=True)
class Report:
    """Findings and progress of a check.

    ``nodes``, ``arrays``: number of those found. ``chunks``: number decoded, of ``stored_nbytes`` and ``decoded_nbytes``. ``done`` of
    ``total`` chunks were read, stored or not.
    ``bad``: invalid or unreadable nodes and chunks, and nodes of operations that were given up. ``unchecked``: possibly valid nodes
    with features that zarrfs does not support.
    ``outside``: keys of chunks outside of the grid, which no program reads and no specification forbids. ``hidden``: nodes at whose path
    there are also documents of other layouts, which are ignored and not checked; ``below``: nodes below an array, which no view shows and
    which are not checked either; ``misnamed``: documents at names that no node may have, with the same effect; ``orphaned``: places with
    chunks and no array; ``outdated``: differences of consolidated copies from the store. ``steps``: operations in several steps, in
    progress or interrupted; ``making``: those with nothing in place yet; ``repaired``: those completed or undone.
    ``complete`` is False until the end is reached.

    ``shards``: number of indexes read, including nested ones. ``shard_chunks`` of ``shard_chunks_possible`` chunks are in them;
    ``shard_unused_nbytes`` of their bytes belong to no chunk.
    """

    store: str
    nodes: int = 0
    arrays: int = 0
    chunks: int = 0
    stored_nbytes: int = 0
    decoded_nbytes: int = 0
    shards: int = 0
    shard_chunks: int = 0
    shard_chunks_possible: int = 0
    shard_unused_nbytes: int = 0
    done: int = 0
    total: int = 0
    bad: Findings = field(default_factory=Findings)
    unchecked: Findings = field(default_factory=Findings)
    outside: Findings = field(default_factory=Findings)
    hidden: Findings = field(default_factory=Findings)
    below: Findings = field(default_factory=Findings)
    misnamed: Findings = field(default_factory=Findings)
    orphaned: Findings = field(default_factory=Findings)
    outdated: Findings = field(default_factory=Findings)
    steps: Findings = field(default_factory=Findings)
    making: Findings = field(default_factory=Findings)
    repaired: Findings = field(default_factory=Findings)
    complete: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return JSON values only."""
        counts = "nodes arrays chunks stored_nbytes decoded_nbytes shards shard_chunks shard_chunks_possible shard_unused_nbytes"
        members: dict[str, Any] = {name: getattr(self, name) for name in ("store", "complete", *counts.split())}
        for name in (
            "bad",
            "unchecked",
            "steps",
            "making",
            "repaired",
            "outside",
            "hidden",
            "below",
            "misnamed",
            "orphaned",
            "outdated",
        ):
            findings: Findings = getattr(self, name)
            members[f"{name}_count"] = findings.count
            members[name] = [each.to_json() for each in findings.first]
        return members

    def add_chunk_error(self, path: str, key: str, coords: Coords, error: Exception) -> None:
        """Add an unreadable chunk, for a foreseen or unforeseen reason."""
        self.findings_of(error).add(Finding(path, reason_of(f"chunk {coords} of {path}", error), key, coords))

    def findings_of(self, error: Exception) -> Findings:
        """Return the list for what could not be read because of ``error``."""
        return self.unchecked if isinstance(error, UNSUPPORTED) else self.bad
