from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from zarrfs.options import log_lines
from zarrfs.options.log_lines import OF_A_KEY, OF_A_KIND, WINDOW, Formatter, Limiter


class Log:
    """A log with a clock of its own; ``lines`` are its lines so far, without time and level."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stream = io.StringIO()
        handler = logging.StreamHandler(self.stream)
        handler.setFormatter(Formatter())
        self.limiter = Limiter(handler, lambda: self.now)
        handler.addFilter(self.limiter)
        self.logger = logging.Logger("zarrfs.tried", logging.DEBUG)
        self.logger.addHandler(handler)

    def warn(self, key: str, kind: str = "read") -> None:
        self.logger.warning("%s: %s", kind, key, extra={"kind": kind, "key": key})

    @property
    def lines(self) -> list[str]:
        return [line.partition(" zarrfs.tried: ")[2] for line in self.stream.getvalue().splitlines()]


def test_of_one_key_a_few_lines_are_written_and_the_others_counted() -> None:
    log = Log()
    for n in range(12_717):
        log.now = n * 8 / 12_717
        log.warn("a/0.0")
    assert log.lines == ["read: a/0.0"] * OF_A_KEY
    log.limiter.log_dropped()
    assert log.lines[OF_A_KEY:] == [f"{12_717 - OF_A_KEY} more like this suppressed in 8 s, last: read: a/0.0"]
    log.limiter.log_dropped()
    assert len(log.lines) == OF_A_KEY + 1


def test_many_keys_are_limited_together() -> None:
    log = Log()
    for n in range(5_000):
        log.warn(f"a/{n}")
    assert log.lines == [f"read: a/{n}" for n in range(OF_A_KIND)]
    log.limiter.log_dropped()
    assert log.lines[OF_A_KIND:] == [f"{5_000 - OF_A_KIND} more like this, for other keys, suppressed in 0 s, last: read: a/4999"]


def test_a_flood_of_one_kind_hides_no_other() -> None:
    log = Log()
    for n in range(1_000):
        log.warn(f"a/{n}")
    log.warn("a/0", "release")
    log.logger.error("something else: %s", "a/0")
    assert log.lines[-2:] == ["release: a/0", "something else: a/0"]


def test_a_new_window_begins_with_what_was_left_out_of_the_last() -> None:
    log = Log()
    for _ in range(10):
        log.warn("a")
    log.now = WINDOW
    log.warn("b", "open")
    assert log.lines[OF_A_KEY:] == [f"{10 - OF_A_KEY} more like this suppressed in {WINDOW:.0f} s, last: read: a", "open: b"]
    log.warn("a")
    assert log.lines[-1] == "read: a"


def test_without_a_key_the_message_is_one() -> None:
    log = Log()
    for n in range(10):
        log.logger.warning("%s is broken", n % 2)
    assert log.lines.count("0 is broken") == log.lines.count("1 is broken") == OF_A_KEY


def test_what_is_counted_takes_a_bounded_amount_of_memory() -> None:
    log = Log()
    for n in range(10 * log_lines.KINDS):
        for _ in range(OF_A_KEY + 1):
            log.warn("a", f"kind {n}")
    assert len(log.limiter._kinds) == log_lines.KINDS
    log.limiter.log_dropped()
    assert sum("1 more like this suppressed" in line for line in log.lines) == 10 * log_lines.KINDS, "none is forgotten untold"


def test_debugging_is_asked_for() -> None:
    log = Log()
    for _ in range(1_000):
        log.logger.debug("again")
    assert len(log.lines) == 1_000


def test_every_handler_of_ours_tells_what_it_left_out() -> None:
    log = Log()
    with added(log.logger.handlers[0]):
        for _ in range(OF_A_KEY + 2):
            log.warn("a")
        log_lines.log_dropped(over=WINDOW)
        assert len(log.lines) == OF_A_KEY
        log_lines.log_dropped()
    assert log.lines[-1].startswith("2 more like this")


def test_a_line_is_one_line_whatever_is_in_it() -> None:
    log = Log()
    log.logger.warning("%s", "a\x1b]0;x\x07\n2026-01-01 00:00:00,000 ERROR zarrfs: forged \x9b \udc9b \u202e")
    log.logger.warning("%s", "x" * 100_000)
    first, second = log.stream.getvalue().splitlines()
    assert first.endswith(r"a\x1b]0;x\x07\n2026-01-01 00:00:00,000 ERROR zarrfs: forged \x9b \udc9b \u202e")
    assert len(second) < 5_000 and second.endswith("(96000 more characters)")


def test_a_traceback_keeps_its_lines_and_forges_none() -> None:
    log = Log()
    try:
        raise ValueError("\x1b[31m\n2026-01-01 00:00:00,000 ERROR zarrfs: forged")
    except ValueError:
        log.logger.exception("failed")
    log.logger.error("more", extra={"more": "one\n\x9btwo"})
    lines = log.stream.getvalue().splitlines()
    assert "Traceback (most recent call last):" in lines[1] and len(lines) > 5
    assert [line for line in lines if not line.startswith("  ")] == [lines[0], lines[-3]]
    assert lines[-2:] == ["  one", r"  \x9btwo"]
    assert "\x1b" not in "".join(lines)


@contextmanager
def added(handler: logging.Handler) -> Iterator[None]:
    logger = logging.getLogger("zarrfs")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
