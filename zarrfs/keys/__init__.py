"""Keys of a store and paths of a hierarchy, as values validated at construction.

A ``Key`` names a value of a store and a ``Prefix`` a set of them; a ``NodePath`` names a node of a hierarchy. All three are strings, so
that a directory listing of a hundred thousand keys needs no wrappers; their form is valid wherever they occur. What is valid by its
origin is made by ``str.__new__``, without the validation: a walk over a store makes dozens of them for each node.

Source: Zarr v3 core (2022) section "Abstract store interface": *a key is a string where the final character is not a /*, *a prefix
ends with a trailing /*. The specified character set is not enforced: stores hold keys of other software, and a backend refuses those that
it cannot hold (`zarrfs.errors.KeyUnusable`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from zarrfs.errors import KeyUnusable, NameInvalid


class Key(str):
    """A store key: not empty, no trailing slash. Raises `KeyUnusable` otherwise."""

    __slots__ = ()

    def __new__(cls, value: str) -> Self:
        if type(value) is cls:
            return value
        if not value or value[-1] == "/":
            raise KeyUnusable(f"not a store key: {value!r}", key=value)
        return super().__new__(cls, value)

    @property
    def parent(self) -> Prefix:
        """The prefix up to and including the last slash of the key; empty if it has none."""
        return str.__new__(Prefix, self[: self.rfind("/") + 1])

    @property
    def name(self) -> str:
        """The part after the last slash."""
        return self[self.rfind("/") + 1 :]


class Prefix(str):
    """The common beginning of a set of keys: empty (every key), or ending with a slash. Raises `KeyUnusable` otherwise."""

    __slots__ = ()

    def __new__(cls, value: str = "") -> Self:
        if type(value) is cls:
            return value
        if value and value[-1] != "/":
            raise KeyUnusable(f"not a prefix, must end with '/': {value!r}", key=value)
        return super().__new__(cls, value)

    def key(self, name: str) -> Key:
        """Return the key with this prefix and ``name`` (which may contain slashes)."""
        return str.__new__(Key, self + name) if name and name[-1] != "/" else Key(self + name)

    def child(self, name: str) -> Prefix:
        """Return the prefix one level below."""
        return str.__new__(Prefix, f"{self}{name}/")

    def of(self, path: NodePath) -> Prefix:
        """Return `NodePath.prefix` of ``path``, in a hierarchy with its root at this prefix."""
        return str.__new__(Prefix, self + path.prefix) if self else path.prefix


class Contents(Prefix):
    """A target of `zarrfs.stores.base.Store.sync`: all values with this prefix, and their names."""

    __slots__ = ()


class Filled(Prefix):
    """A target of `zarrfs.stores.base.Store.remove_prefix` with keys: refused as `StoreAccessDenied` if this user may not erase these."""

    __slots__ = ()


class IfUnsynced(Key):
    """A target of `zarrfs.stores.base.Store.sync`: this value, if it was set or moved through the store since it was last synced."""

    __slots__ = ()


APART = Prefix(".zarrfs/")
"""Prefix of values not yet, or no longer, at their final keys (`zarrfs.hierarchy.intents`). It has no nodes, and no view shows it."""


class NodePath(str):
    """The path of a node in a hierarchy: ``/`` for the root, else ``/a/b``: no empty part, no ``.`` and no ``..``.

    Source: v2 "Logical storage paths", v3 (final) "Node names". Raises `NameInvalid`.
    """

    __slots__ = ()

    def __new__(cls, value: str) -> Self:
        if type(value) is cls:
            return value
        if value != "/":
            if not value.startswith("/"):
                raise NameInvalid(f"not a node path, must begin with '/': {value!r}", key=value)
            for part in value[1:].split("/"):
                if part in ("", ".", ".."):
                    raise NameInvalid(f"not a node path, invalid part {part!r}: {value!r}", key=value)
        return super().__new__(cls, value)

    @classmethod
    def normalized(cls, text: str) -> Self:
        """Return the path of a node from user input: with backslashes, repeated slashes, or none at its ends.

        Source: v2 "Logical storage paths". Raises `NameInvalid` for a part that is ``.`` or ``..``.
        """
        return cls("/" + "/".join(part for part in text.replace("\\", "/").split("/") if part))

    @property
    def name(self) -> str:
        """The last part; empty for the root."""
        return self[self.rfind("/") + 1 :]

    @property
    def parent(self) -> NodePath:
        """The path one level up; the root is its own parent."""
        cut = self.rfind("/")
        return str.__new__(NodePath, self[:cut] if cut > 0 else "/")

    @property
    def prefix(self) -> Prefix:
        """The path as a prefix of keys in v2 and the final v3: ``""`` for the root, ``a/b/`` for ``/a/b``."""
        return str.__new__(Prefix, "" if self == "/" else self[1:] + "/")

    def child(self, name: str) -> NodePath:
        """Return the path of the node ``name`` directly below."""
        return NodePath(f"/{name}" if self == "/" else f"{self}/{name}")

    def ancestors(self) -> Iterator[NodePath]:
        """Yield every path above this one, the root first; none for the root itself."""
        if self == "/":
            return
        yield ROOT
        cut = self.find("/", 1)
        while cut != -1:
            yield str.__new__(NodePath, self[:cut])
            cut = self.find("/", cut + 1)


ROOT = NodePath("/")


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A part of a value, in bytes: ``length`` bytes from ``start`` (``length`` None: to the end).

    With ``start`` None it is the last ``length`` bytes.

    Source: v3 core (2022) "Abstract store interface" (range_start, range_length); the suffix form is the final v3's.
    A range past the end of the value is cut at the end.
    """

    start: int | None = 0
    length: int | None = None

    def __post_init__(self) -> None:
        if self.start is None and self.length is None:
            raise ValueError("suffix range without a length")
        if (self.start is not None and self.start < 0) or (self.length is not None and self.length < 0):
            raise ValueError(f"negative byte range: {self}")

    @classmethod
    def suffix(cls, length: int) -> ByteRange:
        """Return the range of the last ``length`` bytes."""
        return cls(None, length)

    def resolve(self, size: int) -> tuple[int, int]:
        """Return ``(start, stop)`` within a value of ``size`` bytes, clamped to it."""
        if self.start is None:
            assert self.length is not None
            return max(0, size - self.length), size
        start = min(self.start, size)
        return start, size if self.length is None else min(start + self.length, size)


WHOLE = ByteRange()
