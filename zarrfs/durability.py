"""The demand that values being stored survive a power cut.

The request comes with fsync(2) and is needed where a file replaces another: a folder must write the new value to the disk *before* the
rename, else a power cut in between leaves neither the old value nor the new one. The layers in between (views, chunks, shards, codecs,
transformers) do not use it, so it is not passed through them: it belongs to the task that publishes, and to the tasks and threads that
this task starts, as trio passes context variables on.

It affects order and is no guarantee: durable is what `zarrfs.stores.base.Store.sync` was called for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_DEMANDED: ContextVar[bool] = ContextVar("durability demanded", default=False)


@contextmanager
def demanded(demand: bool = True) -> Iterator[None]:
    """Mark values stored in the body as about to be synced, if ``demand``."""
    token = _DEMANDED.set(demand)
    try:
        yield
    finally:
        _DEMANDED.reset(token)


def is_demanded() -> bool:
    """Return True within the body of `demanded`."""
    return _DEMANDED.get()
