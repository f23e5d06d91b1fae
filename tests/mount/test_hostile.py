"""Hostile stores through the kernel; see ``tests/views/test_hostile.py``."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.support import survey
from tests.support.cases import Case
from tests.support.hostile import BAD_SHARDS, bad_shard_chunk, check, check_huge, folder_cases, write_huge
from tests.support.mounting import mounted, watchdog

pytestmark = pytest.mark.fuse

MEMORY_MIB = 256


def resident_peak_mib(pid: int) -> int:
    """Return the peak memory of a process."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) // 1024


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in folder_cases()])
def test_bad_nodes_are_refused_and_sound_ones_read(case: Case) -> None:
    with mounted(case.path, "--read-only") as mount, watchdog(60):
        found = survey.of_folder(mount.path)
        check(case, found)
        # Errors are returned, and the mount stays usable.
        assert {each.error for each in found.values()} <= {None, "EIO", "EACCES"}
        assert resident_peak_mib(mount.pid) < MEMORY_MIB
        cwd = os.readlink(f"/proc/{mount.pid}/cwd")
        assert not os.path.exists(os.path.join(cwd, "PICKLE_CANARY"))
        assert "Traceback" not in mount.log()


def test_a_chunk_of_a_bad_shard_is_an_error_and_never_missing() -> None:
    """Even where it is not listed: a program that gets ENOENT would use fill values."""
    (case,) = [case for case in folder_cases() if case.name == "hostile/v3_bad_shards"]
    with mounted(case.path, "--read-only") as mount:
        for path, bad in BAD_SHARDS.items():
            for index in range(2):
                chunk = mount.path / f"chunks{path}/{index}"
                if index in bad:
                    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                        chunk.read_bytes()
                else:
                    assert chunk.read_bytes() == bad_shard_chunk(index)


@pytest.mark.full_length
def test_what_is_larger_than_anything(tmp_path: Path) -> None:
    huge = write_huge(tmp_path / "huge")
    with mounted(huge, "--read-only", "--memory-limit", "64MiB", "--cache-dir", str(tmp_path / "cache")) as mount, watchdog(60):
        check_huge(survey.of_folder(mount.path))
        assert resident_peak_mib(mount.pid) < MEMORY_MIB
        assert "Traceback" not in mount.log()
