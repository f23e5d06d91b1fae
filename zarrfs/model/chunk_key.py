"""Chunk key encodings: chunk coordinates to the part of a store key after the array's data prefix, and back.

Sources: v2 "Chunks" (``1.2``, ``1/2``); v3 final "Chunk key encoding" (``c/1/2``, ``c.1.2``, and its ``v2``); v3 core 2022
"Chunk keys" (``c1/2``); the layout before 1.0 (``1.2.blosc``). One form covers them all, so that a dialect only supplies the parts.

In the protocol draft of 2019 the only chunk of a 0-dimensional array has an empty identifier: its key is the data prefix itself, which
cannot be a key; in real stores (folders, object stores through fsspec) it is the prefix without its slash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zarrfs.keys import Key, Prefix
from zarrfs.model.chunk_grid import Coords


@dataclass(frozen=True, slots=True)
class ChunkKeyEncoding:
    """``prefix`` + coordinates joined by ``separator`` + ``suffix``; ``scalar`` for the only chunk of a 0-dimensional array.

    ``backwards``: the last coordinate comes first (N5, whose dimensions are in the opposite order).
    """

    prefix: str
    separator: str
    scalar: str
    suffix: str = ""
    backwards: bool = False

    def key(self, prefix: Prefix, coords: Coords) -> Key:
        """Return the store key of chunk ``coords`` of an array with this data prefix."""
        encoded = self.encode(coords)
        return prefix.key(encoded) if encoded else Key(prefix[:-1])

    def keys(self, prefix: Prefix, coords: Sequence[Coords]) -> list[Key]:
        """Return `key` of each of several chunks, with fewer calls."""
        if self.backwards or not all(coords):
            return [self.key(prefix, each) for each in coords]
        begin, join, end = f"{prefix}{self.prefix}", self.separator.join, self.suffix
        return [Key(f"{begin}{join(map(str, each))}{end}") for each in coords]

    def encode(self, coords: Coords) -> str:
        """Return the key of chunk ``coords``, relative to the array's data prefix."""
        if not coords:
            return self.scalar
        return f"{self.prefix}{self.separator.join(map(str, coords[::-1] if self.backwards else coords))}{self.suffix}"

    def decode(self, key: str, ndim: int) -> Coords | None:
        """Return the coordinates that ``key`` encodes for an array of ``ndim`` dimensions; None if it is no chunk key.

        Only the exact string that `encode` returns is accepted (``01`` and ``+1`` are not chunk keys).
        """
        if ndim == 0:
            return () if key == self.scalar else None
        if not key.startswith(self.prefix) or not key.endswith(self.suffix):
            return None
        parts = key[len(self.prefix) : len(key) - len(self.suffix)].split(self.separator)
        if len(parts) != ndim or not all(map(_is_index, parts)):
            return None
        return tuple(map(int, reversed(parts) if self.backwards else parts))

    def may_begin(self, part: str, ndim: int) -> bool:
        """Return True if a chunk key of an array of ``ndim`` dimensions may begin with ``part`` and a slash."""
        if ndim == 0:
            return self.scalar.startswith(f"{part}/")
        if self.prefix.startswith(f"{part}/"):
            return True
        if self.separator != "/" or not part.startswith(self.prefix):
            return False
        indices = part[len(self.prefix) :].split("/")
        return len(indices) < ndim and all(map(_is_index, indices))


def _is_index(part: str) -> bool:
    return part.isascii() and part.isdecimal() and len(part) <= 19 and (part == "0" or part[0] != "0")


def default(separator: str = "/") -> ChunkKeyEncoding:
    """Return v3 final ``default``: ``c/1/2``; ``c`` for a 0-dimensional array."""
    return ChunkKeyEncoding(prefix=f"c{separator}", separator=separator, scalar="c")


def v2(separator: str = ".") -> ChunkKeyEncoding:
    """Return the encoding of v2, and v3 final ``v2``: ``1.2``; ``0`` for a 0-dimensional array."""
    return ChunkKeyEncoding(prefix="", separator=separator, scalar="0")
