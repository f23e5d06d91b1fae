"""Capabilities of a store, as data: callers read them instead of trying operations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of one store. Where a part lacks one (a file system mounted in a folder), the operation raises `StoreUnsupported`.

    ``read``, ``write`` and ``list`` are the readable, writable and listable stores of Zarr v3 core (draft of 2022), "Abstract store
    interface".
    """

    read: bool = True
    write: bool = True
    list: bool = True
    hierarchical: bool = False
    """A key can never be a prefix of another (``a`` beside ``a/b``), as in a folder."""
    suffix_ranges: bool = True
    """The last bytes of a value can be read without knowing its size."""
    create_only: bool = True
    """`Store.set` accepts ``expect=ABSENT``."""
    match: bool = True
    """`Store.set` accepts ``expect=generation``."""
    copy: bool = False
    """`Store.copy` moves no bytes through this process."""
    rename: bool = False
    """`Store.rename` and `Store.rename_prefix` are supported, each in one step."""
    exchange: bool = False
    """`Store.exchange_prefixes` is supported."""
    empty_prefixes: bool = False
    """`Store.make_prefix` and `Store.remove_prefix` are supported."""
    times: bool = False
    """`Store.set_times` is supported."""
    watch: bool = False
    """`Store.watch` may report changes by other programs."""
    name_nbytes: int | None = None
    """Bytes of the longest part of a key between slashes; None without limit."""
    width: int = 64
    """Requests in flight up to which the store gets no slower."""
