"""Work in progress of a mount, in lines for its log: requests of the kernel, operations of the store, and tasks.

Lines and their number are bounded: names come from stores and programs, and there may be thousands of requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import trio

from zarrfs.in_flight import InFlight
from zarrfs.printable import counted, printable

_LINES = 30
"""Maximum of lines of each kind."""
_LENGTH = 200
_ARGUMENT_LENGTH = 100


def report(requests: Iterable[tuple[float, str]], operations: InFlight) -> list[str]:
    """Return a line of counts, then one for each request and operation, oldest first, with its age, and one for each kind of task.

    Called in the event loop.
    """
    asked = [f"request, {age:.1f} s: {what}" for age, what in requests]
    stored = [f"store operation, {age:.1f} s: {_call(what)}" for age, what in operations]
    root, here = trio.lowlevel.current_root_task(), trio.lowlevel.current_task()
    alike = Counter(tasks(root, but=here)) if root is not None else Counter[str]()
    named = [f"task: {task}" + (f" ({number} of them)" if number > 1 else "") for task, number in alike.most_common()]
    counts = (counted(len(asked), "request"), counted(len(stored), "store operation"), counted(alike.total(), "task"))
    lines = [f"in progress: {', '.join(counts)}", *_some(asked), *_some(stored), *_some(named)]
    return [printable(line)[:_LENGTH] for line in lines]


def _some(lines: list[str]) -> list[str]:
    return lines[:_LINES] + ([f"and {len(lines) - _LINES} more"] if len(lines) > _LINES else [])


def _call(what: tuple[object, ...]) -> str:
    """Format an operation as ``set('a/0', 12 bytes)``: keys, never values."""
    name, *arguments = what
    return f"{name}({', '.join(map(_argument, arguments))})"


def _argument(value: object) -> str:
    match value:
        case bytes() | bytearray() | memoryview():
            return f"{memoryview(value).nbytes} bytes"
        case str() | int() | None:
            return _shortened(repr(value))
        case list() | tuple():
            # Not repr: it may contain values.
            first = _argument(value[0]) if value else ""
            return f"[{first}{', ...' if len(value) > 1 else ''}]"
        case _:
            return type(value).__name__


def _shortened(text: str) -> str:
    return text if len(text) <= _ARGUMENT_LENGTH else f"{text[:_ARGUMENT_LENGTH]}..."


def tasks(root: trio.lowlevel.Task, but: trio.lowlevel.Task | None = None) -> Iterator[str]:
    """Yield the name of every task below ``root``, except ``but``, and where in zarrfs it waits.

    Thread-safe: of a task that runs meanwhile only the name is given.
    """
    waiting = [root]
    while waiting:
        task = waiting.pop()
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
        if task is not but:
            try:
                yield f"{task.name}{_position(task)}"
            except RuntimeError:
                yield task.name


def _position(task: trio.lowlevel.Task) -> str:
    positions = [
        f" at {frame.f_globals['__name__']}:{line} ({frame.f_code.co_name})"
        for frame, line in task.iter_await_frames()
        if str(frame.f_globals.get("__name__", "")).startswith("zarrfs.")
    ]
    return positions[-1] if positions else ""
