"""What a line of the log looks like, and how many of a kind there are.

Lines hold names and reasons from stores and from other users, so the finished text is escaped (`zarrfs.printable`), whoever logged it;
and a store or user who can cause one line can cause any number, so in each `WINDOW` a few are written of each key, a few more of each
kind of line, and then how many were left out.

The kind of a line is where in the program it comes from and, if it says so, ``kind``; its key is ``key``, else the whole message::

    log.warning("%s: %s", name, error, extra={"kind": (name, type(error)), "key": error.key})
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from zarrfs.printable import printable, printable_lines

WINDOW = 60.0
"""Seconds for which lines are counted."""
OF_A_KEY = 3
"""Lines of one key and kind in a window."""
OF_A_KIND = 30
"""Lines of one kind in a window, whatever their keys."""
KINDS = 200
"""Kinds that are counted at the same time; what was counted first of the others is forgotten, after it was told."""
LONGEST = 4000
"""Characters of a message: a key may have megabytes."""


class Formatter(logging.Formatter):
    """One line a record, then what else there is to it (a traceback, ``extra={"more": text}``) in lines that are indented."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(shortened(record.message))
        text = super().formatMessage(record)
        more = getattr(record, "more", None)
        return text if more is None else f"{text}\n  {printable_lines(more)}"

    def formatException(self, ei: logging._SysExcInfoType | tuple[None, None, None]) -> str:
        return f"  {printable_lines(super().formatException(ei))}"

    def formatStack(self, stack_info: str) -> str:
        return f"  {printable_lines(stack_info)}"


def shortened(message: str) -> str:
    """``message``, cut where it is longer than `LONGEST`."""
    return message if len(message) <= LONGEST else f"{message[:LONGEST]} ... ({len(message) - LONGEST} more characters)"


@dataclass(slots=True)
class _Counted:
    """Lines of one key, or of all keys that are not counted apart; ``last`` of those that were left out."""

    written: int = 0
    left_out: int = 0
    last: str = ""


@dataclass(slots=True)
class _Kind:
    """Lines of one kind since ``began``, by (the hash of) their keys; ``others``: of keys that came when enough was written."""

    began: float
    name: str
    level: int
    written: int = 0
    keys: dict[int, _Counted] = field(default_factory=dict)
    others: _Counted = field(default_factory=_Counted)

    def takes(self, key: int, message: str) -> bool:
        """Count a line; whether it is to be written."""
        counted = self.keys.get(key)
        if counted is None:
            counted = self.keys.setdefault(key, _Counted()) if self.written < OF_A_KIND else self.others
        if counted.written < OF_A_KEY and self.written < OF_A_KIND:
            counted.written += 1
            self.written += 1
            return True
        counted.left_out += 1
        counted.last = message
        return False


class Limiter(logging.Filter):
    """Lets a few records of each key and kind pass, and has ``handler``, whose filter this is, tell how many it did not. What is of level
    DEBUG, or was ``asked_for``, passes whole. ``clock`` gives seconds. For any thread."""

    def __init__(self, handler: logging.Handler, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._handler = handler
        self._clock = clock
        self._kinds: OrderedDict[Hashable, _Kind] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG or getattr(record, "asked_for", False):
            return True
        try:
            message = shortened(record.getMessage())
        except Exception:  # noqa: BLE001 - the handler tells of a record that is malformed
            return True
        key = getattr(record, "key", None)
        identity = (record.name, record.levelno, str(record.msg)[:LONGEST], getattr(record, "kind", None))
        with self._locked():
            self._tell(WINDOW)
            kind = self._kinds.get(identity)
            if kind is None:
                if len(self._kinds) == KINDS:
                    self._tell_of(self._kinds.popitem(last=False)[1])
                kind = self._kinds[identity] = _Kind(self._clock(), record.name, record.levelno)
            return kind.takes(hash(message if key is None else key), message)

    def log_dropped(self, *, over: float = 0) -> None:
        """Tell what was left out of the kinds that have been counted for ``over`` seconds, and begin anew with them."""
        with self._locked():
            self._tell(over)

    def _tell(self, over: float) -> None:
        # In the order in which they began.
        while self._kinds and self._clock() - next(iter(self._kinds.values())).began >= over:
            self._tell_of(self._kinds.popitem(last=False)[1])

    def _tell_of(self, kind: _Kind) -> None:
        seconds = self._clock() - kind.began
        for counted in (*kind.keys.values(), kind.others):
            if counted.left_out:
                which = "like this, of other keys," if counted is kind.others else "of these"
                said = f"{counted.left_out} more {which} left out in {seconds:.0f} s, the last: {counted.last}"
                self._handler.emit(logging.LogRecord(kind.name, kind.level, "", 0, said, None, None))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # The one that the handler holds while it writes.
        self._handler.acquire()
        try:
            yield
        finally:
            self._handler.release()


def log_dropped(*, over: float = 0) -> None:
    """Have every handler of our log tell what it has left out of the kinds that it has counted for ``over`` seconds."""
    for handler in logging.getLogger("zarrfs").handlers:
        for each in handler.filters:
            if isinstance(each, Limiter):
                each.log_dropped(over=over)
