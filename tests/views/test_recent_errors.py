from __future__ import annotations

import json
from typing import Any

from zarrfs.errors import ChunkDecodeError, StoreTimeout
from zarrfs.views.recent_errors import MAX_LINES, MAX_LINES_OF_KEY, RecentErrors


def said(errors: RecentErrors) -> list[dict[str, Any]]:
    return [json.loads(line) for line in errors.text().splitlines()]


def test_errors_come_in_order() -> None:
    errors = RecentErrors()
    for n in range(5):
        errors.add("read" if n % 2 else "open", StoreTimeout(f"n {n}", key="k"))
    assert [line["message"] for line in said(errors)] == [f"n {n}" for n in range(5)]
    assert said(errors)[0].keys() == {"time", "operation", "key", "error", "message"}


def test_one_bad_chunk_displaces_no_other() -> None:
    errors = RecentErrors()
    errors.add("read", ChunkDecodeError("bad", key="a/0"))
    for n in range(12_717):
        errors.add("read", ChunkDecodeError(f"bad {n}", key="a/1"))
    lines = said(errors)
    assert len(lines) == 1 + MAX_LINES_OF_KEY
    assert lines[0]["key"] == "a/0"
    assert lines[-1]["message"] == "bad 12716" and lines[-1]["left_out"] == 12_717 - MAX_LINES_OF_KEY


def test_many_bad_chunks_displace_no_other_kind_of_error() -> None:
    errors = RecentErrors()
    errors.add("release", StoreTimeout("lost", key="b"))
    errors.add("read", ValueError("without a key"))
    for n in range(5 * MAX_LINES):
        errors.add("read", ChunkDecodeError("bad", key=f"a/{n}"))
    lines = said(errors)
    assert len(lines) == MAX_LINES
    assert [line["message"] for line in lines[:2]] == ["lost", "without a key"]
    assert lines[-1]["key"] == f"a/{5 * MAX_LINES - 1}"


def test_the_key_is_exact_and_the_message_for_people() -> None:
    errors = RecentErrors()
    errors.add("read", ChunkDecodeError("a\x1b[1m\x9b\udc9b\u202e: bad", key="a\x1b[1m\x9b\udc9b\u202e"))
    assert errors.text().isascii() and b"\x1b" not in errors.text()
    (line,) = said(errors)
    assert line["key"] == "a\x1b[1m\x9b\udc9b\u202e"
    assert line["message"] == r"a\x1b[1m\x9b\udc9b\u202e: bad"
