"""Array documents with equal members are parsed once: those of one store often differ in their attributes alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Generic, TypeVar

from zarrfs.model.unparsed import Unparsed

T = TypeVar("T")

_MAX_PARSED = 128
# The text of longer ones, of thousands of fields or chunks, costs a moment in which no other thread runs.
_LONGEST_NBYTES = 16 * 1024

Chosen = tuple[tuple[str, str], ...]
"""The items of a dialect's choices."""


class _Members:
    """Members of a document, equal to others of the same ``text``."""

    __slots__ = ("members", "text")

    def __init__(self, members: Mapping[str, Any]) -> None:
        self.members = members
        self.text = repr(members)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Members) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


class ParseOnce(Generic[T]):
    """``parse``, for documents with attributes, which it does not get. Its results are shared, and so must be immutable."""

    def __init__(self, parse: Callable[[Mapping[str, Any], Mapping[str, str]], T]) -> None:
        self._parse = parse
        self._parsed = lru_cache(_MAX_PARSED)(self._parse_members)

    def __call__(self, document: Mapping[str, Any], chosen: Mapping[str, str], source: bytes | dict[str, Any] | Unparsed) -> T:
        """Return the result of ``parse``. ``source``: what the document was read from."""
        members = {name: value for name, value in document.items() if name != "attributes"}
        if len(source.data if isinstance(source, Unparsed) else source) > _LONGEST_NBYTES:
            return self._parse(members, chosen)
        return self._parsed(_Members(members), tuple(chosen.items()))

    def _parse_members(self, members: _Members, chosen: Chosen) -> T:
        return self._parse(members.members, dict(chosen))
