"""Whether what is being stored has to survive a power cut.

That is known where fsync(2) arrives and needed where a file takes the place of another: a folder has to write the new value down
*before* the rename, else a power cut in between leaves neither the old value nor the new one. What lies between (views, chunks, shards,
codecs, transformers) has no use for it, so it is not handed through them: it belongs to the task that publishes, and to the tasks and
threads which that starts, as trio passes context variables on.

It orders what is done, and makes no promise: durable is what `zarrfs.stores.base.Store.sync` was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_DEMANDED: ContextVar[bool] = ContextVar("durability demanded", default=False)


@contextmanager
def demanded(demand: bool = True) -> Iterator[None]:
    """What is stored in the body will be synced right after it, if ``demand``."""
    token = _DEMANDED.set(demand)
    try:
        yield
    finally:
        _DEMANDED.reset(token)


def is_demanded() -> bool:
    """Whether the caller is in the body of `demanded`."""
    return _DEMANDED.get()
