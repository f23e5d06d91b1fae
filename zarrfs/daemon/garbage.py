"""Garbage collection that stops the event loop for a short time only, however much a mount holds.

Python's collector looks from time to time at every container object of the process, with everything stopped: 80 ms for the nodes of 5,000
groups. What it has found alive once is not looked at again: a full collection costs as much as there is that is new since the last one.
What becomes garbage later is freed when nothing refers to it any more, as nearly everything is; a cycle of old objects is not, so what
lives long and may come in numbers has to be taken apart by whoever ends it (`FolderWatch.close`, `InodeTable.forget`).
"""

from __future__ import annotations

import gc

_OLDEST = 2


def collect_in_portions() -> None:
    """From now on; what there is already, the modules above all, is not looked at again."""
    if _after_a_collection not in gc.callbacks:
        gc.collect()
        gc.freeze()
        gc.callbacks.append(_after_a_collection)


def _after_a_collection(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == _OLDEST:
        gc.freeze()
