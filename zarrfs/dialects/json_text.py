"""The text of an untrusted JSON document: its limits, and the extents of its values.

Source: RFC 8259, with the deviations and limits listed in `zarrfs.dialects.documents`.

A C parser holds the interpreter for as long as it parses, and its objects take up to fifty times the size of their text. A document above
`SMALL_NBYTES` is therefore never parsed at once: it is cut along its members and passed to the C parser in pieces of about that size.
Large members that the reader of a document does not use (attributes, copies of other documents) stay `Unparsed`. Other threads run
between two pieces, for any document.
"""

from __future__ import annotations

import codecs
import itertools
import json
import math
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, Self

from zarrfs.model.unparsed import Unparsed

# Enough for a consolidated copy of some ten thousand arrays.
MAX_NBYTES = 16 << 20
MAX_DEPTH = 64
MAX_VALUES = 2_000_000
"""Limit of values in one document: checking them all takes seconds, beside other work."""
MAX_MEMBERS = 1 << 17
"""Limit of members of one object: those of a consolidated copy take some five hundred bytes each while the mount lives."""
SMALL_NBYTES = 64 << 10
"""Size of text that the C parser handles within a millisecond or two."""

# Limit of values in a large document that become objects: they take 10 MB.
_MAX_PARSED = 100_000
# Array metadata takes a few hundred characters; thousands of fields, or category labels, are far below this.
_MAX_PARSED_LENGTH = 1 << 20
# A member of a large document that may stay unparsed is parsed up to this length: names of dimensions, units, scale factors.
_SHORT = 4096

_PIECE_NBYTES = 4 * SMALL_NBYTES
_CLOSING = {"[": "]", "{": "}"}
_SPACE = re.compile(r"[ \t\n\r]*+")
_IN_STRING = re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL)
_STRUCTURE = re.compile(r'["\[\]{}]')
# The group is the end of a string.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+(")?|[\[\]{}]', re.DOTALL)


class Overflowing(float):
    """A legal JSON number beyond the range of a float, ``1e999``: an infinity that keeps its ``text``."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Self:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __repr__(self) -> str:
        return self.text


def fault_of(data: bytes) -> str | None:
    """Return why a document that was put together cannot be read again; None if it can."""
    try:
        JsonText(data)
    except ValueError as error:
        return str(error)
    return None


class LargeDocument(bytes):
    """A document that is measured once for all its readers. The measurement lives as long as the document."""

    text: JsonText | None = None


def text_of(data: bytes) -> JsonText:
    """Return ``data`` decoded and measured. Raises as `JsonText`."""
    if not isinstance(data, LargeDocument):
        return JsonText(data)
    if data.text is None:
        data.text = JsonText(data)
    return data.text


class JsonText:
    """A document of at most `MAX_NBYTES`, decoded and measured.

    Raises `ValueError` (including `UnicodeDecodeError` and `json.JSONDecodeError`), here and in every method, without the store key.
    """

    def __init__(self, data: bytes) -> None:
        if len(data) > MAX_NBYTES:
            raise ValueError(f"document of {len(data)} bytes exceeds the limit of {MAX_NBYTES} bytes")
        if data.startswith(codecs.BOM_UTF8):
            raise ValueError("begins with a byte order mark")
        self.text = bytes(data).decode("utf-8")
        self.is_small = len(self.text) <= SMALL_NBYTES
        # Begin and end of containers above `SMALL_NBYTES`.
        self._large: dict[int, int] = {}
        # Those of them whose text was checked.
        self._checked: set[int] = set()
        # Commas in them, about that far apart.
        self._cuts: dict[int, list[int]] = {}
        if not self.is_small or self.text.count("[") + self.text.count("{") > MAX_DEPTH:
            self._measure()

    def whole(self, loose: Collection[tuple[str, ...]] = ()) -> Any:
        """Return the value of the whole document.

        ``loose`` is the set of paths of objects whose large members may stay `Unparsed`.
        """
        at = self.skip(0)
        if self.is_small:
            value, end = _DECODER.raw_decode(self.text, at)
        else:
            value = _Reader(self).load(at, loose)
            end = self.extent(at)
        if self.skip(end) != len(self.text):
            raise json.JSONDecodeError("Extra data", self.text, self.skip(end))
        return value

    def skip(self, at: int) -> int:
        """Return the first offset from ``at`` that is not white space."""
        found = _SPACE.match(self.text, at)
        assert found is not None
        return found.end()

    def end(self, at: int) -> int:
        """Return the end of the value at ``at``, after checking it without keeping it."""
        if at in self._large and at not in self._checked:
            self._check(at)
            self._checked.add(at)
        return self.extent(at)

    def members(self, at: int, end_of: Callable[[int], int] | None = None) -> Iterator[tuple[str, int, int]]:
        """Yield name, begin and end of the value of each member of the object at ``at``.

        ``end_of`` returns the end of a value; without it every value is checked.
        """
        seen: set[str] = set()
        at = self.skip(at + 1)
        while seen or self.text[at : at + 1] != "}":
            name, start, stop = self._member(at, end_of)
            if name in seen:
                raise ValueError(f"duplicate member {_shortened(name)}")
            seen.add(name)
            yield name, start, stop
            at = self.skip(stop)
            if self.text[at : at + 1] == "}":
                return
            at = self._after_comma(at)

    def _check(self, at: int) -> None:
        """Check the large container at ``at``, in pieces between commas of its own."""
        opening, last, names = self.text[at], self._large[at] - 1, set[str]()
        begin = at + 1
        for cut in (*self._cuts.get(at, ()), last):
            if cut < begin:
                continue
            if cut - begin > _PIECE_NBYTES:
                begin = self._check_slowly(opening, self.skip(begin), cut, names)
                continue
            piece = _DECODER.decode(f"{opening}{self.text[begin:cut]}{_CLOSING[opening]}")
            if not piece:
                raise json.JSONDecodeError("Expecting value", self.text, cut)
            if opening == "{":
                if not names.isdisjoint(piece):
                    raise ValueError(f"duplicate member {_shortened(next(iter(names & piece.keys())))}")
                names |= piece.keys()
            begin = cut + 1

    def _check_slowly(self, opening: str, at: int, stop: int, names: set[str]) -> int:
        """Check the values that begin before ``stop`` one by one: one of them is large, or all are numbers.

        Returns the start of the first value not checked, or the position after the container.
        """
        text = self.text
        while at <= stop:
            if opening == "{":
                name, _, end = self._member(at)
                if name in names:
                    raise ValueError(f"duplicate member {_shortened(name)}")
                names.add(name)
            else:
                # Numbers, literals: as many as come before the next bracket or string.
                limit = min(stop, at + SMALL_NBYTES)
                structure = _STRUCTURE.search(text, at, limit)
                comma = text.rfind(",", at, structure.start() if structure else limit)
                if comma > at:
                    _DECODER.decode(f"[{text[at:comma]}]")
                    at = self.skip(comma + 1)
                    continue
                end = self.end(at)
            at = self.skip(end)
            if text[at : at + 1] == _CLOSING[opening]:
                return at + 1
            at = self._after_comma(at)
        return at

    def _member(self, at: int, end_of: Callable[[int], int] | None = None) -> tuple[str, int, int]:
        if self.text[at : at + 1] != '"':
            raise json.JSONDecodeError("Expecting property name enclosed in double quotes", self.text, at)
        name, at = _DECODER.raw_decode(self.text, at)
        at = self.skip(at)
        if self.text[at : at + 1] != ":":
            raise json.JSONDecodeError("Expecting ':' delimiter", self.text, at)
        start = self.skip(at + 1)
        return name, start, (end_of or self.end)(start)

    def _after_comma(self, at: int) -> int:
        if self.text[at : at + 1] != ",":
            raise json.JSONDecodeError("Expecting ',' delimiter", self.text, at)
        return self.skip(at + 1)

    def extent(self, at: int) -> int:
        """Return the end of the value at ``at``, which may not have been checked."""
        return self._large.get(at) or _DECODER.raw_decode(self.text, at)[1]

    def is_large(self, at: int) -> bool:
        """Return True if the value at ``at`` is a container above `SMALL_NBYTES`."""
        return at in self._large

    def parse(self, at: int) -> tuple[Any, int]:
        """Return the value at ``at``, parsed at once, and its end."""
        return _DECODER.raw_decode(self.text, at)

    def _measure(self) -> None:
        """Find large containers and check depth and counts before any parse: the C parser recurses, and may overflow a small stack."""
        open_at: list[int] = []
        cut_at: list[int] = []
        # Commas in each open container.
        commas = [0]
        values, last = 0, 0
        for start, stop in _tokens(self.text):
            if between := self.text.count(",", last, start):
                values += between
                commas[-1] += between
            last = stop
            token = self.text[start]
            if token in "]}":
                if open_at:
                    begin = open_at.pop()
                    cut_at.pop()
                    if commas.pop() >= MAX_MEMBERS and self.text[begin] == "{":
                        raise ValueError(f"more than {MAX_MEMBERS} members in one object")
                    if token != _CLOSING[self.text[begin]]:
                        # `_check` closes the pieces itself and would not notice.
                        raise json.JSONDecodeError(f"Expecting {_CLOSING[self.text[begin]]!r}", self.text, start)
                    if stop - begin > SMALL_NBYTES:
                        self._large[begin] = stop
                    else:
                        self._cuts.pop(begin, None)
                continue
            if open_at and start - cut_at[-1] > SMALL_NBYTES:
                before = self.text.rfind(",", cut_at[-1], start)
                if before >= 0 and self.skip(before + 1) == start:
                    self._cuts.setdefault(open_at[-1], []).append(before)
                    cut_at[-1] = before
            if token != '"':
                values += 1
                open_at.append(start)
                cut_at.append(start)
                commas.append(0)
                if len(open_at) > MAX_DEPTH:
                    raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
            if values > MAX_VALUES:
                raise ValueError(f"more than {MAX_VALUES} values in one document")
        if values > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES} values in one document")
        if len(open_at) and not self.is_small:
            raise json.JSONDecodeError("Unterminated array or object", self.text, open_at[-1])


class _Reader:
    """A reader of the value of ``document``, which counts what it parses: several may read one document at once."""

    def __init__(self, document: JsonText) -> None:
        self._document = document
        self._text = document.text
        self._parsed = self._parsed_length = 0
        self._loose_values = self._loose_length = 0

    def load(self, at: int, loose: Collection[tuple[str, ...]]) -> Any:
        """Return the value at ``at``; ``loose``: see `JsonText.whole`."""
        if not loose or self._text[at : at + 1] != "{":
            return self._parse(at)
        loaded = {}
        for name, start, stop in self._document.members(at, self._document.extent):
            inner = {path[1:] for path in loose if path[:1] == (name,)}
            if inner:
                loaded[name] = self.load(start, inner)
            elif () in loose:
                loaded[name] = self._value_or_text(start, stop)
            else:
                loaded[name] = self._parse(start)
        return loaded

    def _parse(self, at: int) -> Any:
        if self._document.is_large(at):
            self._count(at, self._document.extent(at))
            return self._document.parse(at)[0]
        value, end = self._document.parse(at)
        self._count(at, end)
        return value

    def _value_or_text(self, start: int, stop: int) -> Any:
        if self._text[start] not in '[{"':
            return self._document.parse(start)[0]
        values = _values(self._text, start, stop)
        # Counted apart from members that must be parsed, which must not be refused because of optional ones.
        if (
            stop - start <= _SHORT
            and self._loose_values + values <= _MAX_PARSED
            and self._loose_length + stop - start <= _MAX_PARSED_LENGTH
        ):
            self._loose_values += values
            self._loose_length += stop - start
            return self._document.parse(start)[0]
        self._document.end(start)
        return Unparsed(self._text[start:stop].encode())

    def _count(self, start: int, stop: int) -> None:
        self._parsed_length += stop - start
        if self._parsed_length > _MAX_PARSED_LENGTH:
            raise ValueError(f"more than {_MAX_PARSED_LENGTH} characters outside attributes")
        self._parsed += _values(self._text, start, stop)
        if self._parsed > _MAX_PARSED:
            raise ValueError(f"more than {_MAX_PARSED} values outside attributes")


def _tokens(text: str) -> Iterator[tuple[int, int]]:
    """Yield the extents of brackets, and of strings, since a bracket within one does not count.

    A single expression for a whole string would hold the interpreter for a second.
    """
    at = 0
    while at < len(text):
        for found in _TOKEN.finditer(text, at, at + _PIECE_NBYTES):
            start, stop = found.span()
            if text[start] == '"' and found.lastindex is None:
                # It ends beyond this piece.
                at = _end_of_string(text, start)
                yield start, at
                break
            yield start, stop
        else:
            at += _PIECE_NBYTES


def _end_of_string(text: str, start: int) -> int:
    at = start + 1
    while True:
        found = _IN_STRING.match(text, at, at + _PIECE_NBYTES)
        stop = found.end() if found is not None else at
        if text[stop : stop + 1] == '"':
            return stop + 1
        if stop == at:
            raise json.JSONDecodeError("Unterminated string starting at", text, start)
        at = stop


def end_of_value(data: bytes) -> int:
    """Return the number of bytes up to the end of the object, list or text at the start of ``data``, which is not checked."""
    depth = 0
    try:
        # A character for each byte: brackets and quotation marks are never part of another character in UTF-8.
        # More of them than these are of a document that `JsonText` refuses.
        for start, stop in itertools.islice(_tokens(text := data.decode("latin-1")), 2 * MAX_VALUES + 2):
            depth += (text[start] in "[{") - (text[start] in "]}")
            if depth <= 0:
                return stop
    except json.JSONDecodeError:
        pass
    return len(data)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of an object. Raises `ValueError` for a duplicate name."""
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"duplicate member {_shortened(name)}")
            seen.add(name)
    return members


def _number(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else Overflowing(text)


_DECODER = json.JSONDecoder(object_pairs_hook=unique, parse_float=_number)


def _values(text: str, start: int, stop: int) -> int:
    return text.count(",", start, stop) + text.count("[", start, stop) + text.count("{", start, stop)


def _shortened(name: str) -> str:
    text = json.dumps(name[:80])
    return text if len(text) <= 80 else text[:77] + "..."
