"""What ``zarrfs check`` finds, as it is told while it works and at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from zarrfs.hierarchy.unforeseen import reason_of
from zarrfs.model.chunk_grid import Coords

MOST = 10_000


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about the node at ``path``: about its documents or, with ``key``, about the chunk ``coords`` or the shard ``shard``."""

    path: str
    reason: str
    key: str | None = None
    coords: Coords | None = None
    shard: Coords | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON values only."""
        said: dict[str, Any] = {"path": self.path, "reason": self.reason}
        if self.key is not None:
            said["key"] = self.key
        for name, coords in (("coords", self.coords), ("shard", self.shard)):
            if coords is not None:
                said[name] = list(coords)
        return said


@dataclass(slots=True)
class Findings:
    """The first `MOST` that were found, and how many there are."""

    first: list[Finding] = field(default_factory=list)
    count: int = 0

    def add(self, finding: Finding) -> None:
        """One more."""
        self.count += 1
        if self.count <= MOST:
            self.first.append(finding)


@dataclass(slots=True)
class Report:
    """What was found, and how far it is.

    ``chunks``: decoded; ``stored_nbytes`` and ``decoded_nbytes``: theirs. ``done`` of ``total`` chunks were asked for, stored or not.
    ``bad``: nodes and chunks that are not what they have to be, or cannot be read. ``unchecked``: nodes that may be sound and ask for
    what zarrfs cannot do. ``outside``: what is stored as a chunk where the grid has none, which nobody reads and no text forbids.
    ``hidden``: nodes at whose path there are documents of other layouts, too, which count for nothing and are not checked; ``below``:
    nodes below an array, which no view shows and which are not checked either.
    ``steps``: operations in several steps that somebody works on, or that a kill left half done; ``making``: those of which nothing is in
    its place yet; ``repaired``: those that were ended or undone. ``complete`` is False until the end is reached.

    ``shards``: whose index was read, those within others included. ``shard_chunks`` of ``shard_chunks_possible`` chunks are in them;
    ``shard_unused_nbytes`` of theirs belong to no chunk.
    """

    store: str
    nodes: int = 0
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
    steps: Findings = field(default_factory=Findings)
    making: Findings = field(default_factory=Findings)
    repaired: Findings = field(default_factory=Findings)
    complete: bool = False

    def to_json(self) -> dict[str, Any]:
        """JSON values only."""
        names = (
            "store complete nodes chunks stored_nbytes decoded_nbytes shards shard_chunks shard_chunks_possible shard_unused_nbytes"
        )
        said: dict[str, Any] = {name: getattr(self, name) for name in names.split()}
        for name in ("bad", "unchecked", "steps", "making", "repaired", "outside", "hidden", "below"):
            findings: Findings = getattr(self, name)
            said[f"{name}_count"] = findings.count
            said[name] = [each.to_json() for each in findings.first]
        return said

    def add_chunk_error(self, path: str, key: str, coords: Coords, error: Exception) -> None:
        """A chunk that cannot be read, for a reason that was foreseen or not."""
        self.bad.add(Finding(path, reason_of(f"chunk {coords} of {path}", error), key, coords))
