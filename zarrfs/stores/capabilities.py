"""What a store can do, as data: callers ask here, and never by trying."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one store can do. Where part of it cannot (a file system mounted in a folder), the operation raises `StoreUnsupported`.

    ``read``, ``write`` and ``list`` are the readable, writable and listable stores of Zarr v3 core (draft of 2022), "Abstract store
    interface".
    """

    read: bool = True
    write: bool = True
    list: bool = True
    hierarchical: bool = False
    """Whether a key can never be a prefix of another (``a`` beside ``a/b``), as in a folder."""
    suffix_ranges: bool = True
    """Whether the last bytes of a value can be got without knowing its size."""
    create_only: bool = True
    """Whether `Store.set` takes ``expect=ABSENT``."""
    match: bool = True
    """Whether `Store.set` takes ``expect=generation``."""
    copy: bool = False
    """Whether `Store.copy` moves no bytes through this process."""
    rename: bool = False
    """Whether there are `Store.rename` and `Store.rename_prefix`, each in one step."""
    exchange: bool = False
    """Whether there is `Store.exchange_prefixes`."""
    empty_prefixes: bool = False
    """Whether there are `Store.make_prefix` and `Store.remove_prefix`."""
    times: bool = False
    """Whether there is `Store.set_times`."""
    watch: bool = False
    """Whether `Store.watch` may announce what others change."""
    width: int = 64
    """Requests in flight that make the store no slower."""
