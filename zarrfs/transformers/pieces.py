"""Pieces of a value that are set in part."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from zarrfs.buffers import Buffer
from zarrfs.errors import RangesOverlap
from zarrfs.keys import Key

Piece = tuple[int, Buffer]
"""Offset in the value, in bytes, and the bytes."""


def sort(pieces: list[Piece], key: Key) -> None:
    """Sort pieces by offset; raise `RangesOverlap` if two overlap."""
    pieces.sort(key=lambda piece: piece[0])
    for (start, value), (following, _) in itertools.pairwise(pieces):
        if start + len(value) > following:
            raise RangesOverlap(f"overlapping ranges for {key!r} at byte {following}", key=key)


def end_of_start(pieces: Sequence[Piece]) -> int:
    """Return the length in bytes of the value's start that sorted pieces replace without a gap."""
    end = 0
    for start, value in pieces:
        if start > end:
            break
        end = start + len(value)
    return end


def merged(value: Buffer, pieces: Sequence[Piece]) -> Buffer:
    """Return ``value`` with sorted pieces replaced; a gap between its end and a piece is filled with zeros."""
    whole = bytearray(value)
    for start, piece in pieces:
        if start > len(whole):
            whole.extend(bytes(start - len(whole)))
        whole[start : start + len(piece)] = piece
    return whole
