"""Rules for every test: the ``fuse`` marker, and the check of the log.

A test fails when zarrfs logs a warning or worse that the test did not announce, by the marker ``logs(regex, ...)`` or the fixture
``expect_logs``: an unexpected warning is an undetected defect. Logs of other processes are not checked here.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from trio.testing import MockClock

from tests.support import forge, length, sampling
from zarrfs.memory import spill


def why_fuse_is_unusable() -> str | None:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return f"/dev/fuse: {error.strerror}"
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        return "fusermount3 is not installed"
    return None


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        # What mounts of tests rescue and log must not lie among that of the user's own; workers inherit this.
        home = tempfile.TemporaryDirectory(prefix="zarrfs-test-home-", ignore_cleanup_errors=True)
        config.add_cleanup(home.cleanup)
        os.environ |= {name: f"{home.name}/{name}" for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME")}
    # Tests run in the background inherit these as ignored, and so would the programs that they start.
    for number, handler in (signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return three for two processors: tests that mount wait half of the time, for a daemon to start, to notice or to end."""
    return 3 * len(os.sched_getaffinity(0)) // 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return the scheduler for ``make test``, or None if another distribution was requested."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.support.spreading import Spread

    return Spread(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start the longest files first: at the end, all workers would wait for one (`make test` passes ``--no-loadscope-reorder``)."""
    order = {folder: place for place, folder in enumerate(("hostile", "mount", "lifecycle"))}
    items.sort(key=lambda item: (item.path.name not in _LONGEST, order.get(item.path.parent.name, len(order))))
    if not length.FULL and sampling.is_whole_run(config):
        for item in sampling.left_out(items):
            item.add_marker(pytest.mark.skip(reason="one of many cases: make soak runs all, and so does who asks for the file"))


_LONGEST = (
    "test_memory.py",
    "test_stores.py",
    "test_endings.py",
    "test_hung_folder.py",
    "test_umount.py",
    "test_users.py",
    "test_several_steps.py",
    "test_two_writers.py",
    "test_readme.py",
)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("full_length") and not length.MARKED:
        pytest.skip("takes long: .ci/run and make soak run it")
    if item.get_closest_marker("soak") and not length.FULL:
        pytest.skip("takes long: make soak runs it")
    if item.get_closest_marker("fuse") and (reason := why_fuse_is_unusable()):
        if os.environ.get("ZARRFS_REQUIRE_FUSE") == "1":
            pytest.fail(f"this test mounts, ZARRFS_REQUIRE_FUSE=1 demands it, and it cannot: {reason}", pytrace=False)
        pytest.skip(reason)


@pytest.fixture
def autojump_clock() -> MockClock:
    """Return a clock that jumps to the next deadline whenever all tasks wait."""
    return MockClock(autojump_threshold=0)


@pytest.fixture
def _buffers_as_before() -> Iterator[None]:
    """Reset the settings of large buffers (`zarrfs.memory.spill`) after a test, which it or a tree that it builds may change.

    Otherwise small buffers would stay in files, and later tests would open files without limit.
    """
    before = spill._directory, spill.large_nbytes()
    yield
    spill.configure(*before)


@pytest.fixture(autouse=True)
def _real_exec(request: pytest.FixtureRequest, _buffers_as_before: None, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("real_exec"):
        monkeypatch.setattr(forge, "in_use", False)


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []
        self.announced: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(f"{record.levelname} {record.name}: {record.getMessage()}")

    def unannounced(self) -> list[str]:
        return [message for message in self.messages if not any(re.search(regex, message) for regex in self.announced)]


@pytest.fixture(autouse=True)
def _log_is_read(request: pytest.FixtureRequest) -> Iterator[_Collector]:
    logger = logging.getLogger("zarrfs")
    before = (logger.level, logger.handlers[:], logger.propagate)
    collector = _Collector()
    for marker in request.node.iter_markers("logs"):
        collector.announced.extend(marker.args)
    logger.addHandler(collector)
    yield collector
    logger.level, logger.handlers[:], logger.propagate = before
    if unannounced := collector.unannounced():
        pytest.fail("logged without being announced:\n" + "\n".join(unannounced), pytrace=False)


@pytest.fixture
def expect_logs(_log_is_read: _Collector) -> Callable[[str], None]:
    """A function ``expect_logs(regex)``: from now on this test may log warnings and errors that match."""
    return _log_is_read.announced.append
