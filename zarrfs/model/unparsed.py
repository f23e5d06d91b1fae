"""Unparsed parts of a large metadata document."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

_MEMBER_NBYTES = 200
_VALUE_NBYTES = 64
_NAMED_NBYTES = 100


class Unparsed:
    """The value of a member as JSON text, checked but not parsed. Equal to one of the same text."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    @property
    def is_object(self) -> bool:
        """True if the value is an object."""
        return self.data.startswith(b"{")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unparsed) and other.data == self.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"<{len(self.data)} bytes of JSON, {hashlib.blake2b(self.data, digest_size=8).hexdigest()}>"


def parsed_nbytes(data: bytes) -> int:
    """Return an approximate upper bound of the memory, in bytes, of the values of a JSON text as Python objects."""
    values = data.count(b",") + data.count(b"[") + data.count(b"{")
    return len(data) + _VALUE_NBYTES * values + _NAMED_NBYTES * data.count(b":")


LARGE_NBYTES = 64 << 10
"""Attributes up to this size are not counted: most nodes have some."""


def are_large(attributes: Mapping[str, object]) -> bool:
    """Return True if attributes take more than `LARGE_NBYTES`; stops as soon as that is known."""
    return nbytes_of(attributes, LARGE_NBYTES) > LARGE_NBYTES


def nbytes_of(attributes: Mapping[str, object], enough: float = math.inf) -> int:
    """Return the approximate memory of attributes in bytes, or some number above ``enough`` of them."""
    nbytes = 0
    pending: list[object] = [attributes]
    while pending and nbytes <= enough:
        value = pending.pop()
        if isinstance(value, str):
            nbytes += _VALUE_NBYTES + len(value)
        elif isinstance(value, dict):
            nbytes += _VALUE_NBYTES + _MEMBER_NBYTES * len(value)
            pending += value.values()
        elif isinstance(value, list):
            nbytes += _VALUE_NBYTES + _VALUE_NBYTES * len(value)
            pending += value
        elif isinstance(value, Unparsed):
            nbytes += len(value.data)
    return nbytes
