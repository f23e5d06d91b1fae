"""A set of small numbers, one bit each."""

from __future__ import annotations

_SPARE_NBYTES = 256


class NumberSet:
    """Numbers from 0; the size is as many bits as the largest of them."""

    __slots__ = ("_bits", "_count")

    def __init__(self) -> None:
        self._bits = bytearray()
        self._count = 0

    def __contains__(self, number: int) -> bool:
        byte = number >> 3
        return byte < len(self._bits) and bool(self._bits[byte] & 1 << (number & 7))

    def __len__(self) -> int:
        return self._count

    def add(self, number: int) -> None:
        """Add ``number`` to the set."""
        if number in self:
            return
        byte = number >> 3
        if byte >= len(self._bits):
            self._bits.extend(bytes(byte - len(self._bits) + _SPARE_NBYTES))
        self._bits[byte] |= 1 << (number & 7)
        self._count += 1
