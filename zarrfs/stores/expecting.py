"""Set a value over the one that was read, also where the store cannot compare and set in one step."""

from __future__ import annotations

from zarrfs.errors import GenerationMismatch, StoreAccessDenied, StoreError, StoreUnsupported
from zarrfs.keys import Key
from zarrfs.stores.base import Store
from zarrfs.stores.values import ABSENT, Absent, Buffer, Generation

# Some file systems refuse, each in its own words, what creates a file only where none is.
_REFUSALS = (StoreUnsupported, StoreAccessDenied, StoreError)


async def set_over(store: Store, key: Key, value: Buffer, expect: Generation | Absent) -> Generation:
    """As `Store.set` with ``expect``, which the caller has read under `Store.exclusive` where others heed it.

    Where the store cannot do it in one step, it is looked at first. Raises `GenerationMismatch`.
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
    """Raise `GenerationMismatch` unless ``key`` holds this generation, or nothing."""
    stat = await store.stat(key)
    if (stat.generation if stat is not None else ABSENT) != expect:
        raise GenerationMismatch(f"{key!r} was changed by someone else", key=key)
