"""A single log line can be caused any number of times: the log and errors.jsonl stay short, and state the number of suppressed lines."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

import pytest

from tests.support.mounting import mounted

pytestmark = pytest.mark.fuse

READS = 1500
CHUNKS = 1500
# Some thirty lines of each kind, and as many that count suppressed ones; a few kinds occur here.
FEW_LINES = 150


def write_array(folder: Path, chunks: int) -> None:
    """Write an array whose chunks are not zlib data."""
    folder.mkdir(parents=True)
    said = {"zarr_format": 2, "shape": [2 * chunks], "chunks": [2], "dtype": "|u1", "fill_value": 0, "order": "C", "filters": None}
    (folder / ".zarray").write_text(json.dumps(said | {"compressor": {"id": "zlib", "level": 1}}))
    for n in range(chunks):
        (folder / str(n)).write_bytes(b"no zlib")


def read_in_vain(file: Path) -> None:
    """Open and read a file, which has to fail."""
    with pytest.raises(OSError, match="Input/output error"):
        file.read_bytes()


def left_out(log: str, what: str) -> int:
    """Return the number of suppressed lines on ``what``, according to the log."""
    told = re.findall(rf"(\d+) more like this(?:, for other keys,)? suppressed in \d+ s, last: .*{what}", log)
    return sum(map(int, told))


def test_one_corrupt_chunk_that_is_read_again_and_again(tmp_path: Path) -> None:
    write_array(tmp_path / "store" / "a", 1)
    with mounted(tmp_path / "store", "--log-file", str(tmp_path / "log")) as mount:
        for _ in range(READS):
            read_in_vain(mount.path / "chunks/a/0")
        errors = mount.errors()
    log = (tmp_path / "log").read_text()
    lines = log.splitlines()
    written = sum("WARNING zarrfs.fuse.guard: " in line and "left out" not in line for line in lines)
    assert 0 < written <= 10 and len(lines) < 20, log
    assert written + left_out(log, "of /a:") >= READS
    assert len(errors) <= 100
    assert sum(error.get("left_out", 0) for error in errors) > 0


def test_many_corrupt_chunks(tmp_path: Path) -> None:
    write_array(tmp_path / "store" / "a", CHUNKS)
    write_array(tmp_path / "store" / "other", 1)
    with mounted(tmp_path / "store", "--log-file", str(tmp_path / "log"), ends_with=None) as mount:
        with contextlib.suppress(OSError), open(mount.path / "chunks/other/.zattrs", "w") as file:
            file.write("no JSON")
        for n in range(CHUNKS):
            read_in_vain(mount.path / f"chunks/a/{n}")
        errors = mount.errors()
        mount.umount()
    log = (tmp_path / "log").read_text()
    lines = log.splitlines()
    assert len(lines) < FEW_LINES
    assert any("not JSON" in line for line in lines), "one kind of line displaced another"
    assert left_out(log, "of /a:") + sum("of /a:" in line and "left out" not in line for line in lines) >= CHUNKS
    assert len(errors) == 1000
    assert any("not JSON" in error["message"] for error in errors), "one kind of error displaced another"
