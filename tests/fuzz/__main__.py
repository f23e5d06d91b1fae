"""Mutates stores and judges the results: ``make fuzz``, ``make fuzz SEED=7 MINUTES=60``.

    python -m tests.fuzz [--seed SEED] [--minutes M] [--round N | --mount N]     # exit code 1 for a finding

Prints its seed. Criteria: the process lives; no exceptions but those of zarrfs; no traceback in the log; processor time and memory of
each mutant; in mounts, the longest wait of another user; and no wrong bytes under a checksum. For LMDB only the first two are judged. A
finding names its round, and ``--seed SEED --round N`` repeats it in this process.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz import mounts, rounds

ROUNDS = 25
"""Rounds of a worker, which bounds leaks."""
LMDB_ROUNDS = 3
_STUCK_S = 90.0
"""Duration after which a round counts as endless."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seed", default="")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--round", type=int)
    parser.add_argument("--mount", type=int)
    asked = parser.parse_args()
    seed = asked.seed or secrets.token_hex(4)
    print(f"seed {seed}", flush=True)
    count = 0
    for finding in _asked(seed, asked):
        print(finding, flush=True)
        count += 1
    print(f"{count} findings")
    return 1 if count else 0


def _asked(seed: str, asked: argparse.Namespace) -> Iterator[str]:
    if asked.round is not None:
        yield from (f"{each.mutant}: {each.what}" for each in rounds.play(seed, asked.round))
    elif asked.mount is not None:
        yield from (f"{each.mutant}: {each.what}" for each in mounts.play(seed, asked.mount))
    else:
        yield from run(seed, 60 * asked.minutes)


def run(seed: str, seconds: float, *, with_mounts: bool = True) -> Iterator[str]:
    """Yield findings, as text, of as many rounds as time permits: one mount after every few workers."""
    end = time.monotonic() + seconds
    number = mount = 0
    while time.monotonic() < end:
        yield from _worker(seed, number, ROUNDS, end)
        yield from _worker(seed, number, LMDB_ROUNDS, end, "lmdb")
        number += ROUNDS
        if with_mounts and number % (4 * ROUNDS) == 0 and time.monotonic() < end:
            yield from (f"seed {seed}, mount {mount}: {each.mutant}: {each.what}" for each in mounts.play(seed, mount))
            mount += 1


def _worker(seed: str, first: int, count: int, end: float, kind: str = "") -> Iterator[str]:
    """Yield findings of some rounds."""
    command = [sys.executable, "-m", "tests.fuzz.worker", seed, str(first), str(count), *([kind] if kind else [])]
    named = f"seed {seed}, {kind or 'round'}"
    at: int | None = first
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            for line in _lines(process):
                said = json.loads(line)
                if "round" in said:
                    at = said["round"]
                    if at is None or time.monotonic() > end:
                        return
                else:
                    yield f"{named} {at}: {said['mutant']}: {said['what']}"
        except TimeoutError:
            yield f"{named} {at}: took more than {_STUCK_S:g} s"
            return
        finally:
            process.kill()
        code = process.wait()
        what = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        yield f"{named} {at}: the process died: {what}: {process.stderr.read().decode()[-2000:]}"


def _lines(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """Yield lines of its output, until its end. Raises TimeoutError after a long time without any."""
    assert process.stdout is not None
    kept = b""
    while True:
        if not select.select([process.stdout], [], [], _STUCK_S)[0]:
            raise TimeoutError
        part = os.read(process.stdout.fileno(), 1 << 16)
        if not part:
            return
        *lines, kept = (kept + part).split(b"\n")
        yield from lines


if __name__ == "__main__":
    sys.exit(main())
