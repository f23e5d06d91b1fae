"""Records of operations in several steps (`zarrfs.hierarchy.intents`)."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from zarrfs.buffers import Buffer
from zarrfs.errors import IntentTooNew, KeyUnusable, MetadataError, NameInvalid, TooLarge
from zarrfs.hierarchy.moves import Target, parse_target
from zarrfs.keys import APART, ROOT, Key, NodePath, Prefix

VERSION = 2
"""Version of written records; a reader of a later one changes nothing. Records without ``moves`` have version 1."""

RECORD = "intent.json"
"""Name of the record in the folder of its operation."""

MAX_NBYTES = 48 << 20
"""Size of a record at most, which is parsed in memory: the largest document, before and after, in base64."""

# A parsed value takes many times the bytes of its text; a record has a few for each document.
_MAX_VALUES = 100_000

# OverflowError: an infinity in the place of an integer. (binascii.Error is a ValueError.)
_MALFORMED = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError, NameInvalid, KeyUnusable)

Operation = Literal["replace", "rename", "erase", "amend"]
_OPERATIONS: tuple[Operation, ...] = ("replace", "rename", "erase", "amend")


@dataclass(frozen=True, slots=True)
class Record:
    """Record of an ``operation`` on the node at ``path``, which lies at the prefix ``prefix``.

    ``is_used``: the place had content at first; ``source``: previous prefix of what is renamed to it. For documents outside of
    ``prefix``: those ``before`` and those ``after`` the operation. ``copies``: the content apart is copied to the place, entirely, and
    again after a failure; ``erased``: keys erased there before that, None for all; ``count``: number of values apart. ``moves``: keys and
    prefixes to rename, (old, new), chunks before the documents that describe them; ``replaced``: content at the new places, to be
    deleted; ``is_placing``: all of these were apart, and are being moved to the new places; or, without ``moves``, what is replaced was
    apart, and ``source`` is being renamed; or all chunks of ``copies`` are in place. ``documents``: those of the new array, within
    ``prefix``, to tell whether it is in its place. ``has_chunks``: the new array had chunks when they lay apart. ``has_folder``: the
    place of ``copies`` was a folder of the store at first, which no step removes.
    """

    operation: Operation
    path: NodePath
    prefix: Prefix
    is_used: bool = True
    source: Prefix | None = None
    copies: bool = False
    erased: tuple[Key, ...] | None = None
    count: int | None = None
    before: Mapping[Key, bytes] = field(default_factory=dict)
    after: Mapping[Key, bytes] = field(default_factory=dict)
    moves: tuple[tuple[Target, Target], ...] = ()
    replaced: tuple[Target, ...] = ()
    is_placing: bool = False
    documents: Mapping[Key, bytes] = field(default_factory=dict)
    has_chunks: bool = False
    has_folder: bool = False

    @classmethod
    def of_copies(cls, path: NodePath, source: Prefix | None = None) -> Record:
        """Return the record of an edit in one step, of which only the consolidated copies may lack a part."""
        return cls("amend", path, ROOT.prefix, erased=(), source=source)

    @property
    def name(self) -> str:
        """Return the operation, for messages."""
        return "consolidated copy" if self.is_of_copies else self.operation

    @property
    def is_of_copies(self) -> bool:
        """True if there is nothing to complete or undo except for the consolidated copies."""
        return self.operation == "amend" and not self.before and not self.after

    @property
    def is_of_documents(self) -> bool:
        """True if its end stores all documents after the operation, or all before it."""
        return self.operation == "amend" and not self.is_of_copies

    @property
    def is_of_arrays(self) -> bool:
        """True if its end puts an array, or other nodes, in their places or back."""
        return self.operation in ("replace", "rename")

    @property
    def replaces(self) -> bool:
        """True if content that it has replaced lies apart at its end, and is to be removed."""
        # A rename without ``moves`` is one over another node: any other is one step, without a record.
        return bool(self.replaced) or (self.is_of_arrays and self.is_used and not self.is_new and not self.moves)

    @property
    def is_new(self) -> bool:
        """True if a new array whose documents lie elsewhere is put in an empty place: nothing was there that could be put back."""
        return bool(self.after) and not (self.is_used or self.before or self.copies)

    @property
    def places(self) -> tuple[Prefix, ...]:
        """Return the place, and those of what is moved and of the documents."""
        others = (*self.moved, *self.before, *self.after)
        return tuple(dict.fromkeys((self.prefix, *(each if isinstance(each, Prefix) else each.parent for each in others))))

    @property
    def moved(self) -> tuple[Target, ...]:
        """Return the keys and prefixes that lie apart in between."""
        return (*self.replaced, *(old for old, _ in self.moves))

    def format(self) -> bytes:
        """Return the record as JSON. Raises `TooLarge` for documents that no record holds."""
        content: dict[str, Any] = {
            "version": VERSION if self.moves else 1,
            "operation": self.operation,
            "path": self.path,
            "place": self.prefix,
            "is_used": self.is_used,
            "source": self.source,
            "copies": self.copies,
            "erased": self.erased,
            "count": self.count,
            "before": {key: base64.b64encode(value).decode() for key, value in self.before.items()},
            "after": {key: base64.b64encode(value).decode() for key, value in self.after.items()},
        }
        if self.documents:
            content["documents"] = {key: base64.b64encode(value).decode() for key, value in self.documents.items()}
        if self.has_chunks:
            content["has_chunks"] = True
        if self.has_folder:
            content["has_folder"] = True
        if self.moves:
            content |= {"moves": self.moves, "replaced": self.replaced}
        if self.moves or self.is_placing:
            content["is_placing"] = self.is_placing
        text = (json.dumps(content, indent=1) + "\n").encode()
        if len(text) > MAX_NBYTES:
            raise TooLarge(
                f"{self.path}: {len(text)} bytes to change in several steps exceed the limit of {MAX_NBYTES}", key=self.path
            )
        return text

    @classmethod
    def parse(cls, data: Buffer) -> Record:
        """Parse a record. Raises `MetadataError` if it is malformed or exceeds a limit, and `IntentTooNew`."""
        try:
            if len(data) > MAX_NBYTES:
                raise ValueError(f"more than {MAX_NBYTES} bytes")
            text = str(data, "utf-8")
            if sum(map(text.count, ",[{")) > _MAX_VALUES:
                raise ValueError(f"more than {_MAX_VALUES} values")
            content: Any = json.loads(text)
            del text
            version = content["version"]
            if isinstance(version, int) and version > VERSION:
                raise IntentTooNew(f"version {version}: this zarrfs supports versions up to {VERSION}")
            if content["operation"] not in _OPERATIONS:
                raise ValueError(f"unknown operation {content['operation']!r}")
            source, erased = content["source"], content["erased"]
            if not content["place"] and erased is None:
                raise ValueError("place is the whole store")
            moves = tuple((parse_target(old), parse_target(new)) for old, new in content.get("moves", ()))
            replaced = tuple(map(parse_target, content.get("replaced", ())))
            named = (content["place"], *content["before"], *content["after"], *(erased or ()), *sum(moves, ()), *replaced)
            if any(each.startswith(APART) for each in named):
                raise ValueError(f"names below {APART} are not allowed")
            return cls(
                content["operation"],
                NodePath(content["path"]),
                Prefix(content["place"]),
                is_used=bool(content["is_used"]),
                source=Prefix(source) if source is not None else None,
                copies=bool(content["copies"]),
                erased=tuple(map(Key, erased)) if erased is not None else None,
                count=int(content["count"]) if content["count"] is not None else None,
                before=_documents(content["before"]),
                after=_documents(content["after"]),
                moves=moves,
                replaced=replaced,
                is_placing=bool(content.get("is_placing", False)),
                documents=_documents(content.get("documents", {})),
                has_chunks=bool(content.get("has_chunks", False)),
                has_folder=bool(content.get("has_folder", False)),
            )
        except _MALFORMED as error:
            raise MetadataError(f"not the record of an operation: {error!r}") from error


def _documents(content: Mapping[str, str]) -> dict[Key, bytes]:
    return {Key(key): base64.b64decode(value, validate=True) for key, value in content.items()}
