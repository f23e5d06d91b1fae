"""The daemon in the foreground, measuring how long one step of one task occupies its event loop.

    python loop_steps.py CONFIG FILE    # the MountConfig as JSON; the output file for the longest step

Prints a line on stdout when the mount is usable. At SIGUSR2 and at the end, it writes the longest step since the last report to FILE:
its CPU time in seconds, the name of its task, and the longest step of each other task. It measures CPU time of the thread that runs
the loop, which is independent of the load of the machine.

    with stepped(store) as (mount, steps):
        ...
        assert steps.longest() < 0.05
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio

if __name__ == "__main__":
    # This file is run as a script from any directory, so the checkout is not on the path.
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.mounting import Mounted, started, watchdog
from zarrfs.options.config import MountConfig

_PATIENCE = 60


class LoopSteps(trio.abc.Instrument):
    """Measures each step of each task. ``longest`` is the longest for each name, ``total`` the sum, both in seconds."""

    def __init__(self) -> None:
        self.longest: Counter[str] = Counter()
        self.total: Counter[str] = Counter()
        self._began = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        seconds = time.thread_time() - self._began
        self.total[task.name] += seconds  # type: ignore[assignment]
        if seconds > self.longest[task.name]:
            self.longest[task.name] = seconds  # type: ignore[assignment]

    def report(self) -> dict[str, Any]:
        """Return the longest steps since the last report."""
        told = {"longest": dict(self.longest.most_common(10)), "total": dict(self.total.most_common(10))}
        self.longest.clear()
        self.total.clear()
        return told


class Steps:
    """The measurements of the daemon ``pid``."""

    def __init__(self, pid: int, file: Path) -> None:
        self._pid = pid
        self._file = file
        self.last: dict[str, dict[str, float]] = {}
        """The final report, once the mount has ended."""

    def report(self) -> dict[str, dict[str, float]]:
        """Return the longest steps since the last report (or the mount), and the time of all steps, by task."""
        self._file.unlink(missing_ok=True)
        os.kill(self._pid, signal.SIGUSR2)
        with watchdog(_PATIENCE, lambda: self._file.write_text("{}")):
            while not self._file.exists():
                os.sched_yield()
        return self._read()

    def ended(self) -> None:
        """Read the final report, after the end of the daemon."""
        self.last = self._read()

    def _read(self) -> dict[str, dict[str, float]]:
        told: dict[str, dict[str, float]] = json.loads(self._file.read_text())
        return told

    def longest(self) -> float:
        """Return the longest step since the last report, in seconds."""
        return max(self.report()["longest"].values(), default=0.0)


@contextmanager
def stepped(store: Path, *, ends_with: int | None = 0, **options: Any) -> Iterator[tuple[Mounted, Steps]]:
    """Mount like `tests.support.mounting.mounted`, with measurement. ``options`` are those of `MountConfig`.

    After the body, `Steps.last` covers the time since the last report, including the end of the mount.
    """
    with TemporaryDirectory(prefix="zarrfs-test-") as folder:
        file = Path(folder, "steps")
        with started("loop_steps.py", store, str(file), ends_with=ends_with, **options) as (mount, process):
            steps = Steps(process.pid, file)
            yield mount, steps
        if ends_with is not None:
            steps.ended()


def main(config_json: str, file: str) -> int:
    from zarrfs.daemon import serve as daemon
    from zarrfs.options import log_file

    config = MountConfig.from_json(config_json)
    log_file.configure(config.log_level, config.log_file)
    steps = LoopSteps()

    def report() -> None:
        new = Path(file).with_suffix(".new")
        new.write_text(json.dumps(steps.report()))
        new.replace(file)

    async def on_request() -> None:
        with trio.open_signal_receiver(signal.SIGUSR2) as signals:
            async for _ in signals:
                report()

    async def serve() -> int:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(on_request)
            code = await daemon.serve(config, lambda: print("mounted", flush=True))
            nursery.cancel_scope.cancel()
        return code

    code = trio.run(serve, instruments=[steps])
    report()
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
