"""Garbage collection with short pauses of the event loop, for any size of a mount.

Python's collector periodically traverses every container object of the process, with everything stopped: 80 ms for the nodes of 5,000
groups. Here objects found alive once are not traversed again: a full collection costs as much as there is new since the last one. Later
garbage is freed by reference counts, as nearly everything is; a cycle of old objects is not, so long-lived objects that may be many must
be taken apart by their owners (`FolderWatch.close`, `InodeTable.forget`).
"""

from __future__ import annotations

import gc

_OLDEST = 2


def collect_nothing() -> None:
    """Stop the collector until `collect_in_portions`: what a start creates stays, and to traverse it takes a tenth of the time."""
    gc.disable()


def collect_in_portions() -> None:
    """Enable this mode; existing objects, above all the modules, are not traversed again."""
    if _after_a_collection not in gc.callbacks:
        gc.freeze()
        gc.callbacks.append(_after_a_collection)
    gc.enable()


def _after_a_collection(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == _OLDEST:
        gc.freeze()
