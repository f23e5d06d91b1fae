"""Durations of programs that are measured in turn, and whether the machine was steady meanwhile.

In each round every program runs once. A ratio is that of two durations of one round; its median over the rounds is printed, with the
least and the greatest.

Each round also measures what no program here changes: a copy within memory, and READs that are answered without work. If one of these
drifts by more than a tenth, from the first half of the rounds to the second, the run is void: so does everything else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import numpy as np
from common import bare, scratch, seconds

DRIFT = 0.1
_COPIED = 256 << 20
_READS = 256
_PAGE = 4096
_TRIES = 5


class Rounds:
    """Durations in seconds, by job and program."""

    def __init__(self, descriptor: int) -> None:
        """``descriptor``: an open file of a mount that does nothing else, of `_READS` pages, read without the page cache."""
        self._times: dict[tuple[str, str], list[float]] = {}
        self._descriptor = descriptor
        self._steady: dict[str, list[float]] = {"copy within memory": [], "READ without work": []}
        self._source = np.ones(_COPIED, np.uint8)
        self._target = np.ones(_COPIED, np.uint8)

    def each(self, repetitions: int) -> Iterator[int]:
        """Yield the number of each round, after its calibration."""
        for number in range(repetitions):
            self._calibrate()
            yield number
        self._calibrate()

    def note(self, job: str, program: str, duration: float) -> None:
        """Add a duration. Every program of a job has one in each round."""
        self._times.setdefault((job, program), []).append(duration)

    def times(self, job: str, program: str) -> list[float]:
        """Return the durations of a program, one for each round."""
        return self._times[job, program]

    def text(self, job: str, program: str, unit: float = 1.0, digits: int = 3) -> str:
        """Return median and least duration. ``unit``: in seconds."""
        times = [each / unit for each in self.times(job, program)]
        return f"{median(times):.{digits}f} ({min(times):.{digits}f})"

    def ratio(self, job: str, program: str, peer: str) -> str:
        """Return the median ratio of two programs, the least and the greatest."""
        ratios = [ours / theirs for ours, theirs in zip(self.times(job, program), self.times(job, peer), strict=True)]
        return f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"

    def print_verdict(self) -> None:
        """Print the calibration, and whether the run counts."""
        drifts = {name: _drift(times) for name, times in self._steady.items()}
        copy, read = (median(times) for times in self._steady.values())
        print(f"\ncalibration: copy within memory {_COPIED / copy / 1e9:.1f} GB/s, READ without work {read / _READS * 1e6:.0f} us")
        void = [f"{name} drifted by {drift:.0%}" for name, drift in drifts.items() if drift > DRIFT]
        print(f"void: {', '.join(void)}" if void else f"steady: drifts of {', '.join(f'{drift:.0%}' for drift in drifts.values())}")

    def _calibrate(self) -> None:
        copy, read = self._steady.values()
        copy.append(min(seconds(lambda: np.copyto(self._target, self._source)) for _ in range(_TRIES)))
        read.append(min(seconds(self._read) for _ in range(_TRIES)))

    def _read(self) -> None:
        for number in range(_READS):
            os.pread(self._descriptor, _PAGE, number * _PAGE)
            # Else the next READ of this page is answered from the page cache.
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def in_rounds() -> Iterator[Rounds]:
    """Yield new rounds, and print `Rounds.print_verdict` after the body."""
    with scratch(None) as folder:
        (folder / "pages").write_bytes(bytes(_READS * _PAGE))
        with bare()(folder) as mountpoint:
            descriptor = os.open(mountpoint / "pages", os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
                measured = Rounds(descriptor)
                yield measured
                measured.print_verdict()
            finally:
                os.close(descriptor)


def _drift(times: list[float]) -> float:
    half = len(times) // 2
    first, second = median(times[: len(times) - half]), median(times[-half:])
    return max(first, second) / min(first, second) - 1
