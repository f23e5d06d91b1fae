"""Replacement of a value that was read before, also on stores without an atomic compare-and-set."""

from __future__ import annotations

from zarrfs.buffers import Buffer
from zarrfs.errors import GenerationMismatch, StoreAccessDenied, StoreError, StoreUnsupported
from zarrfs.keys import Key
from zarrfs.stores.base import Store
from zarrfs.stores.values import ABSENT, Absent, Generation

# Some file systems refuse exclusive creation of a file, each with an error of its own.
_REFUSALS = (StoreUnsupported, StoreAccessDenied, StoreError)


async def set_over(store: Store, key: Key, value: Buffer, expect: Generation | Absent) -> Generation:
    """Run `Store.set` with ``expect``, a generation read under `Store.exclusive` if other writers use that lock.

    If the store cannot compare and set in one step, a `check` precedes the set. Raises `GenerationMismatch`.
    """
    if store.capabilities.create_only if expect is ABSENT else store.capabilities.match:
        try:
            return await store.set(key, value, expect=expect)
        except StoreError as error:
            if type(error) not in _REFUSALS or (expect is not ABSENT and not isinstance(error, StoreUnsupported)):
                raise
    await check(store, key, expect)
    return await store.set(key, value)


async def check(store: Store, key: Key, expect: Generation | Absent) -> None:
    """Raise `GenerationMismatch` unless ``key`` has this generation, or, for `ABSENT`, no value."""
    stat = await store.stat(key)
    if (stat.generation if stat is not None else ABSENT) != expect:
        raise GenerationMismatch(f"{key!r} was changed concurrently", key=key)
