"""The default memory limit, and whether memory is short, from the kernel's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from zarrfs.memory.machine import default_limit, is_short, total_nbytes

GIB = 1 << 30
MIB = 1 << 20


def machine(root: Path, total: int, available: int | None = None, **files: str) -> Path:
    """Write the kernel's files of a machine."""
    texts = {"proc/meminfo": f"MemTotal: {total >> 10} kB\nMemAvailable: {(total if available is None else available) >> 10} kB\n"}
    for name, text in (texts | {name.replace("__", "/").replace("_dot_", "."): text for name, text in files.items()}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(("total", "limit"), [(20 * GIB, 2 * GIB), (1000 * GIB, 4 * GIB), (GIB, 192 * MIB), (512 * MIB, 128 * MIB)])
def test_the_limit_is_a_tenth(tmp_path: Path, total: int, limit: int) -> None:
    assert default_limit(machine(tmp_path, total)) == limit


def test_the_limit_follows_the_cgroups(tmp_path: Path) -> None:
    root = machine(tmp_path, 100 * GIB, proc__self__cgroup="0::/a/b\n", sys__fs__cgroup__a__b__memory_dot_max="max\n")
    assert total_nbytes(root) == 100 * GIB
    machine(tmp_path, 100 * GIB, sys__fs__cgroup__a__memory_dot_max=f"{10 * GIB}\n")
    assert default_limit(root) == GIB
    machine(tmp_path, 100 * GIB, proc__self__cgroup="4:cpu,memory:/c\n3:pids:/a\n")
    machine(tmp_path, 100 * GIB, sys__fs__cgroup__memory__c__memory_dot_limit_in_bytes=f"{20 * GIB}\n")
    assert default_limit(root) == 2 * GIB


def test_memory_is_short_when_little_is_available_or_all_tasks_wait_for_it(tmp_path: Path) -> None:
    assert not is_short(machine(tmp_path, 10 * GIB))
    assert is_short(machine(tmp_path, 10 * GIB, GIB // 4))
    stalled = "some avg10=9.00 avg60=0.00 avg300=0.00 total=1\nfull avg10={} avg60=0.00 avg300=0.00 total=1\n"
    assert not is_short(machine(tmp_path, 10 * GIB, proc__pressure__memory=stalled.format("0.50")))
    assert is_short(machine(tmp_path, 10 * GIB, proc__pressure__memory=stalled.format("4.00")))


def test_without_the_kernels_files_there_is_a_limit(tmp_path: Path) -> None:
    assert default_limit(tmp_path) == 192 * MIB
    assert not is_short(tmp_path)
