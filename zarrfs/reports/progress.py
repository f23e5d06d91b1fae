"""Progress bar on stderr; nothing if stderr is not a terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from zarrfs.printable import printable


def console_of(stream: TextIO) -> Console:
    """Return a console that takes ``stream`` for a terminal if it is one, whatever FORCE_COLOR says.

    Else a pipe gets bars and lines broken to a width, and rich raises SystemExit once its reader has ended.
    """
    is_terminal = stream.isatty()
    return Console(file=stream, force_terminal=is_terminal, width=None if is_terminal else sys.maxsize, highlight=False)


class Bar:
    """Bar shown during the ``with`` block."""

    def __init__(self, console: Console | None = None) -> None:
        console = console or console_of(sys.stderr)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("listing", total=None)

    def __enter__(self) -> Self:
        if not self._progress.disable:
            self._progress.start()
        return self

    def __exit__(self, *exc: type[BaseException] | BaseException | TracebackType | None) -> None:
        # Older versions of rich end a disabled bar with an empty line.
        if not self._progress.disable:
            self._progress.stop()

    def show(self, what: str, done: int, total: int | None) -> None:
        """Show ``done`` of ``total`` of ``what``, which may contain names from a store; ``total`` is None if unknown."""
        # An update without a total would keep the previous one.
        self._progress.tasks[0].total = total
        self._progress.update(self._task, description=printable(what), completed=done)
