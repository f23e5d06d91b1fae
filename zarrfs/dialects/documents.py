"""Untrusted JSON documents: reads with limits, and patches that leave all other bytes untouched.

Source: RFC 8259, with the deviations required by real stores and the limits required by malicious ones.

* The bare tokens NaN, Infinity and -Infinity are floats: zarr-python writes them in fill values (v0 to v2) and attributes. Views refuse
  attributes that add one (`check_bare_tokens`).
* A number beyond the range of a float (``1e999``) is legal, and keeps its text (`json_text.Overflowing`).
* A lone surrogate (``"\\udcff"``, written for file names that are not UTF-8) is kept in strings; users of a *name* check it.
* Duplicate members are refused. Parsers differ in which one they take, so another program may see another array.
* A byte order mark is refused, as zarr-python does (RFC 8259 section 8.1: MUST NOT be added).
* An integer of more than 4300 digits is refused (Python's own limit), and so is nesting beyond `json_text.MAX_DEPTH`.
* In large documents some members stay `Unparsed` (`zarrfs.dialects.json_text`).

Every failure is a `MetadataError` that names the key.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from zarrfs.dialects.indented import dumps_indented
from zarrfs.dialects.json_text import JsonText, Overflowing, text_of
from zarrfs.errors import MetadataError, MetadataUnsupported
from zarrfs.model.unparsed import Unparsed

# The lowest limit of the supported NumPy versions.
MAX_NDIM = 32
MAX_INTEGER = 2**63 - 1
# Size from which a text may be written without indentation.
_LONG_NBYTES = 1 << 20

_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|NaN|-?Infinity', re.DOTALL)
# One escape of a character, or a run of others, of which the second of two backslashes may precede a "u". It begins with a literal, which
# the library finds at the speed of memory: otherwise a search in a large document would hold the interpreter for a second.
_ESCAPED = re.compile(
    rb"\\(?:u(?:(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})|(?P<code>[0-9a-fA-F]{4}))|[^u](?:\\[^u])*+)",
    re.DOTALL,
)
# Cannot occur in a document: it is random for each process.
_PLACEHOLDER = uuid.uuid4().hex

ATTRIBUTES: frozenset[tuple[str, ...]] = frozenset({("attributes",)})
"""For `parse_object`: the members of a document's member "attributes" may stay unparsed."""
MEMBERS: frozenset[tuple[str, ...]] = frozenset({()})
"""For `parse_object`: the members of the document may stay unparsed, as all are attributes."""


def parse_object(key: str, data: bytes, loose: Collection[tuple[str, ...]] = ()) -> dict[str, Any]:
    """Return the JSON object in ``data``, the value of ``key``. Raises `MetadataError` for anything else.

    ``loose``: paths (names from the outermost object inwards) of objects whose members the caller does not use: in a large document
    these may be `Unparsed`.
    """
    return _parse(key, data, loose)[1]


def parsed(key: str, value: dict[str, Any] | Unparsed, loose: Collection[tuple[str, ...]] = ()) -> dict[str, Any]:
    """Return the object ``value``, a member of a document, parsed as by `parse_object` if it is `Unparsed`."""
    return parse_object(key, value.data, loose) if isinstance(value, Unparsed) else value


def is_object(value: Any) -> bool:
    """Return True if ``value``, which may be `Unparsed`, is an object."""
    return value.is_object if isinstance(value, Unparsed) else isinstance(value, dict)


def dump(value: Any, *, indent: int | str | None = None, sort_keys: bool = False, compact: bool = False) -> bytes:
    """Return ``value`` as JSON in ASCII, as zarr-python writes it (version 2: indent 4, sorted; version 3: indent 2).

    `Unparsed` members keep their text and its indentation. A long text is not indented if that would double it: of nested lists, a few
    hundred kilobytes would exceed the limit of a document. Infinite and undefined floats become the bare tokens that `parse_object`
    accepts; its results are therefore always writable.
    """
    kept: list[bytes] = []

    def placeholder(value: Any) -> str:
        if not isinstance(value, Unparsed):
            raise TypeError(f"{type(value).__name__} is not JSON")
        kept.append(value.data)
        return _PLACEHOLDER

    separators = (",", ":") if compact else (",", ": ") if indent is not None else None
    if indent is not None and not compact:
        text = dumps_indented(value, indent, sort_keys=sort_keys, default=placeholder).encode("ascii")
        if len(text) > _LONG_NBYTES and len(text) > 2 * len(json.dumps(value, default=lambda _: _PLACEHOLDER)):
            return dump(value, sort_keys=sort_keys)
    else:
        text = json.dumps(value, indent=indent, sort_keys=sort_keys, separators=separators, default=placeholder).encode("ascii")
    if b"Infinity" in text:
        # Numbers beyond the range of a float may be among them, and keep their text.
        kept.clear()
        value = _with_text(value)
        text = json.dumps(value, indent=indent, sort_keys=sort_keys, separators=separators, default=placeholder).encode("ascii")
    if not kept:
        return text
    pieces = text.split(f'"{_PLACEHOLDER}"'.encode())
    return b"".join(itertools.chain.from_iterable(itertools.zip_longest(pieces, kept, fillvalue=b"")))


def in_characters(data: bytes) -> bytes:
    """Return the JSON text ``data`` with characters outside ASCII as themselves (UTF-8), and not as escapes, which are equivalent.

    Control characters and lone surrogates, which have no UTF-8, stay escaped.
    """
    return _ESCAPED.sub(_character, data) if b"\\u" in data else data


def _character(escaped: re.Match[bytes]) -> bytes:
    if escaped["high"]:
        code = 0x10000 + ((int(escaped["high"], 16) & 0x3FF) << 10) + (int(escaped["low"], 16) & 0x3FF)
    else:
        code = int(escaped["code"] or b"0", 16)
        if code < 0xA0 or 0xD800 <= code < 0xE000:
            return escaped[0]
    return chr(code).encode()


def patched(key: str, data: bytes, path: Sequence[str], value: Any) -> bytes:
    """Return ``data`` with the member at ``path`` (names from the outermost object inwards) set to ``value``.

    Every other byte stays: order and spelling of members, digits of numbers, white space. A missing member is added at the end of its
    object, which must exist. The new value is indented as the document is.

    Raises `MetadataError` if ``data`` is not a JSON object, or a value on the path is not an object.
    """
    document, _ = _parse(key, data, MEMBERS)
    text = document.text
    unit = _indent_of(text)
    at = document.skip(0)
    for depth, name in enumerate(path):
        if not text.startswith("{", at):
            raise MetadataError(f"{key}: {'/'.join(path[:depth])} is not an object", key=key)
        members, last = _members(document, at)
        last_step = depth == len(path) - 1
        if name in members:
            at, stop = members[name]
            if last_step:
                return (text[:at] + _indented(value, unit, depth + 1) + text[stop:]).encode()
        elif last_step:
            comma, line = "," if members else "", "\n" + unit * (depth + 1) if unit else " " if members else ""
            close = "\n" + unit * depth if unit and not members else ""
            member = f"{json.dumps(name)}: {_indented(value, unit, depth + 1)}"
            return (text[:last] + comma + line + member + close + text[last:]).encode()
        else:
            raise MetadataError(f"{key}: {'/'.join(path[: depth + 1])} is missing", key=key)
    raise ValueError("path of a member must not be empty")


def merged(
    key: str,
    data: bytes,
    path: Sequence[str],
    changes: Mapping[str, Any],
    gone: Iterable[str] = (),
    *,
    group_of: Callable[[str], str] | None = None,
) -> bytes:
    """Return ``data`` with members of the object at ``path`` set to ``changes``, and the members ``gone`` removed.

    A `patched` of many members of one object in one pass: the others keep every byte, and new ones come last, or after the last one of
    their group with ``group_of``: see `_in_groups`.
    """
    document, _ = _parse(key, data, MEMBERS)
    text = document.text
    unit, at = _indent_of(text), document.skip(0)
    for depth, name in enumerate(path):
        members, _ = _members(document, at)
        if name not in members or not text.startswith("{", members[name][0]):
            raise MetadataError(f"{key}: {'/'.join(path[: depth + 1])} is not an object", key=key)
        at = members[name][0]
    depth = len(path) + 1
    line = "\n" + unit * depth if unit else ""
    members, last = _members(document, at)
    written = {name: _indented(value, unit, depth) for name, value in changes.items()}
    removed = frozenset(gone)
    found, begin = [], at + 1
    for name, (start, stop) in members.items():
        end = stop if stop == last else text.index(",", stop)
        if name not in removed:
            found.append((name, text[begin:start] + written.pop(name) if name in written else text[begin:end]))
        begin = end + 1
    new = [
        (name, f"{line or (' ' if found or n else '')}{json.dumps(name)}: {each}") for n, (name, each) in enumerate(written.items())
    ]
    pieces = [piece for _, piece in (_in_groups(found, new, group_of) if group_of is not None else found + new)]
    tail = text[last:] if members else ("\n" + unit * (depth - 1) if unit and pieces else "") + text[document.skip(at + 1) :]
    return (text[: at + 1] + ",".join(pieces) + tail).encode()


Pieces = list[tuple[str, str]]


def _in_groups(found: Pieces, new: Pieces, group_of: Callable[[str], str]) -> Pieces:
    """Return members with their texts so that, of those at one depth, the members of each group follow one another.

    ``group_of``: the path of the group of a member. Where two parts of a group have members of another one between them, zarr-python 3
    forgets the first part: it does not find these nodes, or not even the root of the hierarchy. What is in this order keeps it."""
    added: dict[str, Pieces] = {}
    for each in new:
        added.setdefault(group_of(each[0]), []).append(each)
    last = {group_of(name): n for n, (name, _) in enumerate(found)}
    ordered: Pieces = []
    for n, each in enumerate(found):
        ordered.append(each)
        if last[group := group_of(each[0])] == n:
            ordered += added.pop(group, [])
    ordered += itertools.chain.from_iterable(added.values())
    groups: dict[str, Pieces] = {}
    is_together = True
    present: dict[int, str] = {}
    for each in ordered:
        group = group_of(each[0])
        depth = group.count("/") + bool(group)
        is_together &= group not in groups or present[depth] == group
        present[depth] = group
        groups.setdefault(group, []).append(each)
    return ordered if is_together else list(itertools.chain.from_iterable(groups.values()))


def check_bare_tokens(before: Any, after: Any, name: str = "") -> None:
    """Raise `MetadataError` if attributes ``after`` have a NaN or infinity that ``before`` does not have at the same position.

    JSON has no such numbers, and most programs fail on them. Those already stored are accepted.
    """
    if isinstance(after, Overflowing):
        return
    if isinstance(after, float) and not math.isfinite(after):
        token = dump(after).decode()
        if not isinstance(before, float) or dump(before).decode() != token:
            raise MetadataError(f"attribute {shortened(name)}: {token} is not JSON: use a string, or null")
    elif isinstance(after, Unparsed) or isinstance(before, Unparsed):
        if after != before and (added := _bare_tokens(after)) and added != _bare_tokens(before):
            raise MetadataError(f"attribute {shortened(name)}: {added[0]} is not JSON: use a string, or null")
    elif isinstance(after, dict):
        for key, value in after.items():
            check_bare_tokens(before.get(key) if isinstance(before, dict) else None, value, f"{name}/{key}" if name else key)
    elif isinstance(after, list):
        for index, value in enumerate(after):
            check_bare_tokens(before[index] if isinstance(before, list) and index < len(before) else None, value, f"{name}/{index}")


class naming:
    """Add ``key`` to every `MetadataError` of the body that has none: from the helpers below, from `model` and from `codecs`.

    A class for the reason of `zarrfs.stores.os_errors.translated`.
    """

    __slots__ = ("_key",)

    def __init__(self, key: str) -> None:
        self._key = key

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, MetadataError) and error.key is None:
            raise type(error)(f"{self._key}: {error}", key=self._key) from error


def member(document: Mapping[str, Any], name: str) -> Any:
    """Return the member ``name``. Raises `MetadataError` if it is missing."""
    try:
        return document[name]
    except KeyError:
        raise MetadataError(f"{name} is missing") from None


def integer(value: Any, name: str) -> int:
    """Return ``value``, a Python integer from 0 to 2^63-1; no boolean, no float. ``name`` is for the message, here and below."""
    if type(value) is not int or not 0 <= value <= MAX_INTEGER:
        raise MetadataError(f"{name} must be an integer from 0 to 2^63-1, not {shortened(value)}")
    return value


def integers(value: Any, name: str) -> tuple[int, ...]:
    """Return ``value``, a list of integers from 0 to 2^63-1, as a tuple."""
    if not isinstance(value, list):
        raise MetadataError(f"{name} must be a list of integers, not {shortened(value)}")
    return tuple(integer(each, f"each number in {name}") for each in value)


def shape(value: Any, name: str) -> tuple[int, ...]:
    """Return `integers`, one for each dimension. Raises `MetadataUnsupported` for more dimensions than NumPy supports."""
    if isinstance(value, list) and len(value) > MAX_NDIM:
        raise MetadataUnsupported(f"{name} has {len(value)} dimensions, above the limit of {MAX_NDIM}")
    return integers(value, name)


def string(value: Any, name: str) -> str:
    """Return ``value``, a string."""
    if not isinstance(value, str):
        raise MetadataError(f"{name} must be a string, not {shortened(value)}")
    return value


def array(value: Any, name: str) -> list[Any]:
    """Return ``value``, a JSON array."""
    if not isinstance(value, list):
        raise MetadataError(f"{name} must be a list, not {shortened(value)}")
    return value


def mapping(value: Any, name: str) -> dict[str, Any]:
    """Return ``value``, a JSON object."""
    if not isinstance(value, dict):
        raise MetadataError(f"{name} must be an object, not {shortened(value)}")
    return value


def shortened(value: Any) -> str:
    """Return ``value`` for an error message, of limited length for any value."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, dict | list) and len(value) > 20:
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)} members"
    text = json.dumps(value[:80] if isinstance(value, str) else value)
    return text if len(text) <= 80 else text[:77] + "..."


def _parse(key: str, data: bytes, loose: Collection[tuple[str, ...]] = ()) -> tuple[JsonText, dict[str, Any]]:
    try:
        document = text_of(data)
        value = document.whole(loose)
    except UnicodeDecodeError as error:
        raise MetadataError(f"{key}: not UTF-8: {error.reason} at byte {error.start}", key=key) from error
    except ValueError as error:
        raise MetadataError(f"{key}: not JSON: {error}", key=key) from error
    if not isinstance(value, dict):
        raise MetadataError(f"{key}: not a JSON object but {_kind(value)}", key=key)
    return document, value


def _with_text(value: Any) -> Any:
    match value:
        case Overflowing():
            return Unparsed(value.text.encode())
        case dict():
            return {name: _with_text(each) for name, each in value.items()}
        case list() | tuple():
            return [_with_text(each) for each in value]
    return value


def _bare_tokens(value: Any) -> list[str]:
    data = value.data if isinstance(value, Unparsed) else dump(value)
    if b"NaN" not in data and b"Infinity" not in data:
        return []
    return [found[0].decode() for found in _TOKEN.finditer(data) if not found[0].startswith(b'"')]


def _kind(value: Any) -> str:
    return {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")


def _members(document: JsonText, at: int) -> tuple[dict[str, tuple[int, int]], int]:
    """Return begin and end of the value of each member of the object at ``at``, and the position for a further member."""
    found = {name: (start, stop) for name, start, stop in document.members(at)}
    return found, next(reversed(found.values()))[1] if found else at + 1


def _indent_of(text: str) -> str:
    """Return the indentation of the document's first member; empty if it is written on one line."""
    found = re.match(r"\s*\{\r?\n([ \t]*)\S", text)
    return found[1] if found else ""


def _indented(value: Any, unit: str, depth: int) -> str:
    if not unit:
        return dump(value).decode()
    return dump(value, indent=unit).decode().replace("\n", "\n" + unit * depth)
