"""The reserve: address space that is available when all other is used up."""

from __future__ import annotations

import mmap
import multiprocessing
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zarrfs.memory.reserve import NBYTES, Reserve, is_limited


def _in_a_process(function: Callable[[Any], None]) -> list[Any]:
    """Return the items that ``function`` puts into a queue, in a process of its own for its limits."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=function, args=(answers,))
    process.start()
    found = answers.get()
    process.join()
    return found  # type: ignore[no-any-return]


def _without_room(answers: Any) -> None:
    reserve = Reserve()
    found = [is_limited(), reserve.take()]
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used, used))
    found += [is_limited(), Reserve().take()]
    reserve.lend()
    found.append(reserve.is_held)
    # Not by malloc: after long use, its arenas may keep freed memory.
    with mmap.mmap(-1, NBYTES // 2) as room:
        found.append(len(room) > 0)
    found.append(reserve.take())
    answers.put(found)


def _with_little_room(answers: Any) -> None:
    found = []
    for nbytes in (NBYTES // 2, NBYTES // 4):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + nbytes, resource.RLIM_INFINITY))
        reserve = Reserve()
        found.append(reserve.take())
        reserve.lend()
        found.append(reserve.is_held)
    answers.put(found)


def _with_room(answers: Any) -> None:
    reserve = Reserve()
    reserve.take()
    reserve.lend()
    before = reserve.is_held
    reserve.release()
    answers.put([before, reserve.is_held])


def test_it_is_there_when_there_is_no_memory_left() -> None:
    assert _in_a_process(_without_room) == [False, True, True, False, False, True, True]


def test_it_is_not_touched_where_memory_is_not_limited() -> None:
    assert _in_a_process(_with_room) == [True, False]


def test_where_there_is_little_room_for_good_it_is_smaller() -> None:
    assert _in_a_process(_with_little_room) == [True, False, False, False]
