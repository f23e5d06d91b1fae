"""Progress bar on stderr; nothing if stderr is not a terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from zarrfs.printable import printable


class Bar:
    """Bar shown during the ``with`` block."""

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("listing", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exc: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._progress.stop()

    def show(self, what: str, done: int, total: int | None) -> None:
        """Show ``done`` of ``total`` of ``what``, which may contain names from a store; ``total`` is None if unknown."""
        # An update without a total would keep the previous one.
        self._progress.tasks[0].total = total
        self._progress.update(self._task, description=printable(what), completed=done)
