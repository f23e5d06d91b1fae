"""Parts of a large metadata document that nobody looks into."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

_MEMBER_NBYTES = 200
_VALUE_NBYTES = 64
_NAMED_NBYTES = 100


class Unparsed:
    """The value of a member as JSON text, checked and not parsed. Equal to one of the same text."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    @property
    def is_object(self) -> bool:
        """Whether the value is an object."""
        return self.data.startswith(b"{")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unparsed) and other.data == self.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"<{len(self.data)} bytes of JSON, {hashlib.blake2b(self.data, digest_size=8).hexdigest()}>"


def parsed_nbytes(data: bytes) -> int:
    """Bytes of memory, about and at most, that the values of a JSON text take when all of them are objects of Python."""
    values = data.count(b",") + data.count(b"[") + data.count(b"{")
    return len(data) + _VALUE_NBYTES * values + _NAMED_NBYTES * data.count(b":")


LARGE_NBYTES = 64 << 10
"""Attributes of fewer bytes are not worth counting: most nodes have some."""


def are_large(attributes: Mapping[str, object]) -> bool:
    """Whether attributes take more than `LARGE_NBYTES`; found without going through all of them."""
    nbytes = 0
    for each in _sizes(attributes):
        nbytes += each
        if nbytes > LARGE_NBYTES:
            return True
    return False


def nbytes_of(attributes: Mapping[str, object]) -> int:
    """Bytes of memory that attributes take, about."""
    return sum(_sizes(attributes))


def _sizes(value: object) -> Iterator[int]:
    pending = [value]
    while pending:
        match pending.pop():
            case Unparsed() as text:
                yield len(text.data)
            case str() as text:
                yield _VALUE_NBYTES + len(text)
            case dict() as members:
                yield _VALUE_NBYTES + _MEMBER_NBYTES * len(members)
                pending += members.values()
            case list() as values:
                yield _VALUE_NBYTES + _VALUE_NBYTES * len(values)
                pending += values
            case _:
                yield 0
