"""Format of log lines, and their rate limit.

Lines contain names and reasons from stores and other users, so the finished text is escaped (`zarrfs.printable`) for every logger. A
store or user that can cause one line can cause any number: in each `WINDOW` a few lines are written for each key, a few more for each
kind of line, and then the number of suppressed ones.

The kind of a line is its place in the program and ``kind`` if given; its key is ``key``, else the whole message::

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
"""Seconds over which lines are counted."""
OF_A_KEY = 3
"""Maximum of lines of one key and kind in a window."""
OF_A_KIND = 30
"""Maximum of lines of one kind in a window, over all keys."""
KINDS = 200
"""Maximum of kinds counted at once; beyond it the oldest is logged and forgotten."""
LONGEST = 4000
"""Maximum of characters of a message: a key may have megabytes."""


class Formatter(logging.Formatter):
    """Formats a record as one line, followed by indented lines for a traceback or ``extra={"more": text}``."""

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
    """Return ``message``, cut after `LONGEST` characters."""
    return message if len(message) <= LONGEST else f"{message[:LONGEST]} ... ({len(message) - LONGEST} more characters)"


@dataclass(slots=True)
class _Counted:
    """Counts of lines of one key, or of all keys without a count of their own; ``last`` is the last suppressed line."""

    written: int = 0
    left_out: int = 0
    last: str = ""


@dataclass(slots=True)
class _Kind:
    """Counts of lines of one kind since ``began``, by hash of their keys; ``others``: keys that came after the limit of the kind."""

    began: float
    name: str
    level: int
    written: int = 0
    keys: dict[int, _Counted] = field(default_factory=dict)
    others: _Counted = field(default_factory=_Counted)

    def takes(self, key: int, message: str) -> bool:
        """Count a line; return True if it is to be written."""
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
    """Passes a few records of each key and kind, and has ``handler``, whose filter this is, log the number of suppressed ones.

    Records of level DEBUG, or with ``asked_for``, always pass. ``clock`` gives seconds. Thread-safe.
    """

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
        except Exception:  # noqa: BLE001 - the handler reports a malformed record
            return True
        key = getattr(record, "key", None)
        identity = (record.name, record.levelno, str(record.msg)[:LONGEST], getattr(record, "kind", None))
        with self._locked():
            self._emit_all(WINDOW)
            kind = self._kinds.get(identity)
            if kind is None:
                if len(self._kinds) == KINDS:
                    self._emit(self._kinds.popitem(last=False)[1])
                kind = self._kinds[identity] = _Kind(self._clock(), record.name, record.levelno)
            return kind.takes(hash(message if key is None else key), message)

    def log_dropped(self, *, over: float = 0) -> None:
        """Log the suppressed counts of kinds counted for at least ``over`` seconds, and restart their counts."""
        with self._locked():
            self._emit_all(over)

    def _emit_all(self, over: float) -> None:
        # Kinds are in the order of their start.
        while self._kinds and self._clock() - next(iter(self._kinds.values())).began >= over:
            self._emit(self._kinds.popitem(last=False)[1])

    def _emit(self, kind: _Kind) -> None:
        seconds = self._clock() - kind.began
        for counted in (*kind.keys.values(), kind.others):
            if counted.left_out:
                which = "like this, for other keys," if counted is kind.others else "like this"
                line = f"{counted.left_out} more {which} suppressed in {seconds:.0f} s, last: {counted.last}"
                self._handler.emit(logging.LogRecord(kind.name, kind.level, "", 0, line, None, None))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # The lock that the handler holds while it writes.
        self._handler.acquire()
        try:
            yield
        finally:
            self._handler.release()


def log_dropped(*, over: float = 0) -> None:
    """Make every handler of the zarrfs log write the suppressed counts of kinds counted for at least ``over`` seconds."""
    for handler in logging.getLogger("zarrfs").handlers:
        for each in handler.filters:
            if isinstance(each, Limiter):
                each.log_dropped(over=over)
