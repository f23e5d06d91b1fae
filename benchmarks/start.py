"""Start benchmark: a mount from exec to its first answer, its CPU time, the memory of the idle daemon, and the other short commands.

    python benchmarks/start.py [--repetitions 5]

Repetitions are interleaved, after `touch_memory`. The store is a folder with a group of one array, which no program reads. For
calibration, ``python -c pass`` and an import of the libraries that every mount needs are in the same table: a start cannot cost less.
The numbers of modules are those of one more run. The package is compiled first, as pip does when it installs it: without byte code a
mount takes twice the time.
"""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zarr
from common import arguments, median, scratch, table, touch_memory

import zarrfs

ZARRFS = (sys.executable, "-P", "-m", "zarrfs")
# Upper limits on an idle machine; commands without one are shown for comparison.
LIMIT = {"mount answers": 0.4, "mount returns": 0.4}
LIMIT_CPU = 0.5
LIMIT_MIB = 45
_LONGEST = 30.0
_BETWEEN_LOOKS = 0.001
# Within this time the daemon has done all that follows the first answer.
_SETTLED = 0.5


class Run(NamedTuple):
    """Duration of a command, and CPU time of its process, in seconds."""

    seconds: float
    cpu: float


class Mount(NamedTuple):
    """One mount: until stat(2) gets an answer from it, and until the command returns; CPU seconds of both processes; memory in bytes."""

    answers: float
    returns: Run
    daemon_cpu: float
    rss: int
    pss: int
    anonymous: int


def main() -> None:
    asked = arguments(__doc__)
    compileall.compile_dir(Path(zarrfs.__file__).parent, quiet=1)
    with scratch(asked.directory) as folder:
        store = folder / "a.zarr"
        array = zarr.create_group(store).create_array("array", shape=(1000, 1000), chunks=(100, 100), dtype="f4")
        array[:] = np.ones((1000, 1000), "f4")
        measure(store, folder, asked.repetitions)


def measure(store: Path, folder: Path, repetitions: int) -> None:
    """Measure and print."""
    mountpoint = folder / "mount"
    mountpoint.mkdir()
    commands: dict[str, Callable[[], Run]] = {
        "python -c pass": lambda: run(sys.executable, "-c", "pass"),
        "import numpy, trio, pyfuse3": lambda: run(sys.executable, "-c", "import numpy, trio, pyfuse3"),
        "zarrfs --help": lambda: run(*ZARRFS, "--help"),
        "zarrfs mount --help": lambda: run(*ZARRFS, "mount", "--help"),
        "zarrfs info": lambda: run(*ZARRFS, "info", str(store)),
    }
    mounts: list[Mount] = []
    runs: dict[str, list[Run]] = {}
    for _ in range(repetitions):
        touch_memory(1 << 30)
        for name, command in commands.items():
            runs.setdefault(name, []).append(command())
        mounts.append(mount(store, mountpoint))
        runs.setdefault("zarrfs umount", []).append(run(*ZARRFS, "umount", str(mountpoint)))
    runs["mount answers"] = [Run(each.answers, each.returns.cpu + each.daemon_cpu) for each in mounts]
    runs["mount returns"] = [Run(each.returns.seconds, each.returns.cpu + each.daemon_cpu) for each in mounts]
    print_times(runs, mounts, repetitions)
    print_memory(mounts)
    print_modules(store, mountpoint)


def print_times(runs: dict[str, list[Run]], mounts: Sequence[Mount], repetitions: int) -> None:
    """Print the table of durations and CPU times."""
    rows = []
    for name, each in runs.items():
        limits = [f"{LIMIT[name]}", f"{LIMIT_CPU}"] if name in LIMIT else ["", ""]
        rows.append([name, *spread([one.seconds for one in each]), limits[0], *spread([one.cpu for one in each]), limits[1]])
    rows.append(["  of which the command", "", "", "", *spread([each.returns.cpu for each in mounts]), ""])
    rows.append(["  of which the daemon", "", "", "", *spread([each.daemon_cpu for each in mounts]), ""])
    columns = ["command", "median", "least", "to reach", "CPU median", "least", "to reach"]
    table(f"Start (seconds, of {repetitions})", columns, rows)


def print_memory(mounts: Sequence[Mount]) -> None:
    """Print the table of memory."""
    kinds = {
        "resident": [each.rss for each in mounts],
        "its share (Pss)": [each.pss for each in mounts],
        "anonymous": [each.anonymous for each in mounts],
    }
    rows = [
        [name, *spread([nbytes / 2**20 for nbytes in sizes], 1), f"{LIMIT_MIB}" if name == "resident" else ""]
        for name, sizes in kinds.items()
    ]
    table("memory of the idle daemon (MiB)", ["kind", "median", "least", "to reach"], rows)


def print_modules(store: Path, mountpoint: Path) -> None:
    """Print the table of numbers of imported modules."""
    log = mountpoint.with_name("log")
    env = os.environ | {"PYTHONPROFILEIMPORTTIME": "1"}
    options = ["--log-file", str(log)]
    command = [*ZARRFS, "mount", str(store), str(mountpoint), *options]
    done = subprocess.run(command, env=env, check=True, stderr=subprocess.PIPE, text=True)
    subprocess.run([*ZARRFS, "umount", str(mountpoint)], check=True)
    rows = []
    for name, text in (("command", done.stderr), ("daemon", log.read_text())):
        modules = [line.rpartition("|")[2].strip() for line in text.splitlines() if line.startswith("import time:")][1:]
        own = sum(module.partition(".")[0] == "zarrfs" for module in modules)
        rows.append([name, f"{len(modules)}", f"{own}"])
    table("imported modules of a mount", ["process", "all", "of zarrfs"], rows)


def run(*command: str) -> Run:
    """Run a command, without its output."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    return Run(time.perf_counter() - begin, usage.ru_utime + usage.ru_stime)


def mount(store: Path, mountpoint: Path) -> Mount:
    """Mount a store."""
    before = mountpoint.stat().st_dev
    begin = time.perf_counter()
    process = subprocess.Popen([*ZARRFS, "mount", str(store), str(mountpoint)])
    # Once it is mounted, stat(2) waits for the answer.
    while mountpoint.stat().st_dev == before:
        if time.perf_counter() - begin > _LONGEST:
            raise SystemExit("nothing was mounted")
        time.sleep(_BETWEEN_LOOKS)
    answers = time.perf_counter() - begin
    _, status, usage = os.wait4(process.pid, 0)
    returns = Run(time.perf_counter() - begin, usage.ru_utime + usage.ru_stime)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"zarrfs mount: exit code {process.returncode}")
    time.sleep(_SETTLED)
    daemon = daemon_of(mountpoint)
    memory = rollup(daemon)
    return Mount(answers, returns, cpu_seconds(daemon), memory["Rss"], memory["Pss"], memory["Anonymous"])


def daemon_of(mountpoint: Path) -> int:
    """Return the process number of a mount's daemon, without a request to it."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"--foreground" in arguments and os.fsencode(mountpoint) in arguments:
            return int(process.name)
    raise SystemExit(f"{mountpoint}: its daemon was not found")


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process with all its threads, also ended ones, in seconds."""
    # CPUCLOCK_SCHED of the process: clock_getcpuclockid(3).
    return time.clock_gettime(~pid << 3 | 2)


def rollup(pid: int) -> dict[str, int]:
    """Return the sums of a process's mappings in bytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    fields = (line.split() for line in lines)
    return {name.removesuffix(":"): int(kib) * 1024 for name, kib, *_ in fields}


def spread(values: Sequence[float], digits: int = 3) -> list[str]:
    """Return median and minimum as text."""
    return [f"{value:.{digits}f}" for value in (median(values), min(values))]


if __name__ == "__main__":
    main()
