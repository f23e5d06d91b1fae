"""``zarrfs check`` of archives whose index is damaged: what it no longer names reads as absent, chunks as fill value."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.reports.test_check import checked
from tests.support import archives
from tests.support.small_stores import SMALL


@pytest.mark.logs("lines that are no entries of a DBM")
@pytest.mark.parametrize("below", ["", "|dbm:a", "|unsharded:"])
def test_lines_of_a_dbm_that_are_no_entries_are_bad(tmp_path: Path, below: str) -> None:
    path = archives.dumb(tmp_path, SMALL)
    assert not checked(f"dbm:{path}{below}").bad.count
    index = path.with_name(path.name + ".dir")
    index.write_bytes(index.read_bytes().replace(b"'a/0.0', (", b"'a/0.0'; ("))
    (finding,) = checked(f"dbm:{path}{below}").bad.first
    assert re.fullmatch(re.escape(str(index)) + r": lines that are no entries of a DBM: 1, the first is line \d+", finding.reason)
