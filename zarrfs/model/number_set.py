"""A set of small numbers, one bit each, and ranges of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

_SPARE_NBYTES = 256
# Bytes compared at once in the search for the next number.
_STRETCH_NBYTES = 4096


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
        self._reserve(number + 1)
        self._bits[number >> 3] |= 1 << (number & 7)
        self._count += 1

    def remove(self, number: int) -> None:
        """Remove ``number`` from the set, if it is in it."""
        if number in self:
            self._bits[number >> 3] &= ~(1 << (number & 7))
            self._count -= 1

    def update(self, numbers: range) -> None:
        """Add consecutive numbers to the set."""
        for gap in self.gaps(numbers):
            self._reserve(gap.stop)
            first, last = -(-gap.start // 8), gap.stop // 8
            if first < last:
                self._bits[first:last] = b"\xff" * (last - first)
            for number in (*range(gap.start, min(first * 8, gap.stop)), *range(max(last * 8, gap.start), gap.stop)):
                self._bits[number >> 3] |= 1 << (number & 7)
            self._count += len(gap)

    def gaps(self, numbers: range) -> Iterator[range]:
        """Yield the parts of ``numbers``, which are consecutive, that are not in the set."""
        stop = numbers.start
        while (start := self._next(stop, numbers.stop, is_in=False)) < numbers.stop:
            stop = self._next(start, numbers.stop, is_in=True)
            yield range(start, stop)

    def _next(self, number: int, stop: int, *, is_in: bool) -> int:
        """Return the first number from ``number`` on that is, or is not, in the set; ``stop`` if it is not below that."""
        skipped = b"\0" if is_in else b"\xff"
        while number < stop:
            byte = number >> 3
            if byte >= len(self._bits):
                return stop if is_in else number
            if number & 7 == 0:
                stretch = self._bits[byte : byte + _STRETCH_NBYTES]
                if same := len(stretch) - len(stretch.lstrip(skipped)):
                    number += 8 * same
                    continue
            if bool(self._bits[byte] & 1 << (number & 7)) == is_in:
                return number
            number += 1
        return stop

    def _reserve(self, stop: int) -> None:
        nbytes = -(-stop // 8)
        if nbytes > len(self._bits):
            self._bits.extend(bytes(nbytes - len(self._bits) + _SPARE_NBYTES))


def merged(ranges: Iterable[range]) -> list[range]:
    """Return the numbers of consecutive ``ranges``, each once, in order, as ranges that do not touch."""
    result: list[range] = []
    for each in sorted(ranges, key=lambda numbers: numbers.start):
        if not each:
            continue
        if result and each.start <= result[-1].stop:
            result[-1] = range(result[-1].start, max(result[-1].stop, each.stop))
        else:
            result.append(each)
    return result


def without(ranges: Iterable[range], excluded: Iterable[range]) -> Iterator[range]:
    """Yield the parts of consecutive ``ranges`` outside of ``excluded``."""
    out = merged(excluded)
    for each in ranges:
        start = each.start
        for other in out:
            if other.start >= each.stop:
                break
            if other.stop > start:
                if other.start > start:
                    yield range(start, other.start)
                start = other.stop
        if start < each.stop:
            yield range(start, each.stop)


def portions(ranges: Iterable[range], size: int) -> Iterator[list[range]]:
    """Yield the numbers of ``ranges`` in portions of ``size``, the last one smaller."""
    portion: list[range] = []
    left = size
    for each in ranges:
        while each:
            piece, each = each[:left], each[left:]
            portion.append(piece)
            left -= len(piece)
            if not left:
                yield portion
                portion, left = [], size
    if portion:
        yield portion
