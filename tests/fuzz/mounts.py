"""Rounds of mutants in real mounts: many stores in one folder, completely listed and read, judged from outside."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.fuzz import corpus
from tests.fuzz.mutate import Mutator
from tests.fuzz.rounds import Finding
from tests.support.hostile_stores import provoke
from tests.support.judged_mount import FORBIDDEN, MEMORY_LIMIT, check, judged
from tests.support.mounting import zarrfs

TOGETHER = 60
"""Mutants in a mount."""

PEAK = MEMORY_LIMIT + 150 * 10**6
LONGEST_WAIT_S = 0.25
_ASKED_S = 10.0
_ASKS = [
    "ls -lR $M; true",
    "find $M/chunks $M/raw -type f -size -16M -exec cat {} + > /dev/null; true",
    "find $M/npy $M/zarr3 -type f -size -16M -exec cat {} + > /dev/null; true",
    "find $M -type f -size +16M -exec head -c 100k {} + > /dev/null; true",
]


def play(seed: str, number: int, together: int = TOGETHER) -> list[Finding]:
    """Return all faults of one mount."""
    mutator = Mutator(f"{seed}/mount/{number}", corpus.donors())
    mutants = {f"m{index}": corpus.mutant(mutator) for index in range(together)}
    with tempfile.TemporaryDirectory(prefix="zarrfs-fuzz-") as folder:
        store, cache = Path(folder, "store"), Path(folder, "cache")
        for name, mutant in mutants.items():
            _write(store / name, mutant.values)
        if reported := [*_report("info", store), *_report("check", store)]:
            return reported
        # A long wait may be caused by the machine: a finding has to be reproduced.
        for again in (True, False):
            with judged(store, "--read-only", "--cache-dir", str(cache)) as verdict:
                provoke(verdict.mount.path, _ASKS, _ASKED_S)
            try:
                check(verdict, longest_wait=LONGEST_WAIT_S, peak=PEAK)
            except AssertionError as error:
                if again and not verdict.faults:
                    continue
                return [Finding(f"mount of {len(mutants)}", str(error))]
            return []
    return []


def _report(command: str, store: Path) -> list[Finding]:
    """Return the faults of a command that reads the same store without a mount."""
    try:
        done = zarrfs(command, "--json", str(store))
    except subprocess.TimeoutExpired:
        return [Finding(f"zarrfs {command}", "did not end")]
    if done.returncode not in (0, 1):
        return [Finding(f"zarrfs {command}", f"exit code {done.returncode}: {done.stderr[-3000:]}")]
    return [Finding(f"zarrfs {command}", done.stderr[-3000:]) for word in FORBIDDEN if word in done.stderr]


def _write(folder: Path, values: Mapping[str, bytes]) -> None:
    for key, value in values.items():
        path = folder / key
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(value)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            # A key below another key: no folder can represent both.
            continue
