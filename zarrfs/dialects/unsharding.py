"""Conversion of documents of sharded arrays to those of the same arrays without shards, and back.

Only the members that describe the bundling of chunks change; every other byte stays. Documents of other nodes within one (a consolidated
copy) are changed in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from zarrfs.dialects.documents import ATTRIBUTES, is_object, mapping, merged, parse_object, parsed, patched
from zarrfs.errors import KeyUnusable, MetadataError, NotRepresentable
from zarrfs.keys import Key

Members = Mapping[str, Any]
"""Members of an array's document by name."""

_DATA_TYPE = "data_type"


@dataclass(frozen=True, slots=True)
class _Sharded:
    """The document ``members`` of a sharded array, and the members ``plain`` that differ without shards."""

    members: Members
    plain: Members

    @property
    def bundled(self) -> Members:
        """The members of ``plain`` with their present values."""
        return {name: self.members[name] for name in self.plain}


@dataclass(frozen=True, slots=True)
class Unsharding:
    """The representation of shards in the documents of a dialect.

    ``word`` occurs in each document with shards. ``copies``: path, within a document, of the documents of other nodes by name; ``loose``:
    members that may stay unparsed. ``plain`` returns the members of an array's document that differ without shards; empty if it has no
    shards, or none that can be taken apart. It raises `MetadataError` for a bad document, or one of another kind of node.
    ``copied_key``: the key of the document that a copy of this name in the document at this key repeats.
    """

    word: bytes
    copies: Sequence[str]
    loose: Collection[tuple[str, ...]]
    plain: Callable[[Members], Members]
    copied_key: Callable[[Key, str], Key]

    def unsharded(self, key: Key, document: bytes) -> bytes:
        """See `Layout.unsharded`."""
        own, copied = self._sharded(key, document)
        result = document
        for name, value in own.plain.items() if own is not None else ():
            result = patched(key, result, [name], value)
        return (
            merged(key, result, self.copies, {name: {**each.members, **each.plain} for name, each in copied.items()})
            if copied
            else result
        )

    def copied_keys(self, key: Key, document: bytes) -> dict[str, Key]:
        """See `Layout.copied_keys`."""
        found = {}
        if self.copies[0].encode() in document:
            with suppress(MetadataError):
                for name in self._copies(key, document):
                    with suppress(KeyUnusable):
                        found[name] = self.copied_key(key, name)
        return found

    def resharded(self, key: Key, document: bytes, stored: bytes, nodes: Mapping[str, bytes]) -> bytes:
        """See `Layout.resharded`."""
        own, copied = self._sharded(key, stored)
        for name, each in nodes.items():
            copied.pop(name, None)
            node, _ = self._sharded(key, each)
            if node is not None:
                copied[name] = node
        result = document
        if own is not None and parse_object(key, document, self.loose).get(_DATA_TYPE) != own.members[_DATA_TYPE]:
            raise NotRepresentable(f"{key}: the data type of chunks in shards cannot be changed", key=key)
        for name, value in own.bundled.items() if own is not None else ():
            result = patched(key, result, [name], value)
        now = self._copies(key, document) if copied else {}
        again = {name: {**now[name], **each.bundled} for name, each in copied.items() if name in now}
        if again:
            result = merged(key, result, self.copies, again)
        if self.unsharded(key, result) != document:
            raise NotRepresentable(f"{key}: chunks, codecs and shards cannot be changed in a view without shards", key=key)
        return result

    def _sharded(self, key: Key, document: bytes) -> tuple[_Sharded | None, dict[str, _Sharded]]:
        """Return the document itself, if it is of a sharded array, and the copies of such in it."""
        if self.word not in document:
            return None, {}
        try:
            own = self._of(parse_object(key, document, self.loose))
            copied = {name: self._of(each) for name, each in self._copies(key, document).items()}
        except MetadataError:
            return None, {}
        return own, {name: each for name, each in copied.items() if each is not None}

    def _copies(self, key: Key, document: bytes) -> dict[str, Members]:
        value: Any = parse_object(key, document, self.loose)
        for name in self.copies:
            value = value.get(name) if isinstance(value, dict) else None
        found = value.items() if isinstance(value, dict) else ()
        return {name: mapping(parsed(key, each, ATTRIBUTES), name) for name, each in found if is_object(each)}

    def _of(self, document: Members) -> _Sharded | None:
        try:
            plain = self.plain(document)
        except MetadataError:
            return None
        return _Sharded(document, plain) if plain else None
