"""Runs the test suites of other projects in a mount: ``make outside``, ``make outside ARGS="--suite xarray"``.

    python -m tests.outside [--suite NAME ...] [--place VIEW ...] [--slice N] [--most N] [--folder DIR]

Each suite runs once on a local file system and once in each of its views. A test that passes there and not here is run again, alone, in
both; then it is lost. Prints the numbers, and each lost test; exit code 1 if there is one. Tests that cannot pass in a view by design
(`tests.outside.suites.LOST`, with the reasons) are not run there. ``--slice N`` takes every N-th test, ``--most N`` as many as that from
all of a suite.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.outside.suites import LOST, SUITES, Suite

ROOT = Path(__file__).parents[2]
LOCAL = "local"
_TIMEOUT = 300
"""Seconds of one test."""
_ROOTS = {
    "zarr3": ("zarr.json", '{"zarr_format":3,"node_type":"group","attributes":{}}'),
    "chunks": (".zgroup", '{"zarr_format":2}'),
}
"""The document of the store's root, for views that show hierarchies."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.outside")
    parser.add_argument("--suite", nargs="*", choices=[suite.name for suite in SUITES], default=[suite.name for suite in SUITES])
    parser.add_argument("--place", nargs="*", default=["raw", "zarr3", "chunks"])
    parser.add_argument("--slice", type=int, default=1)
    parser.add_argument("--most", type=int, default=sys.maxsize)
    parser.add_argument(
        "--folder", type=Path, default=ROOT / ".venv-outside", help="environments and sources, kept for the next run"
    )
    asked = parser.parse_args()
    lost = 0
    for suite in SUITES:
        if suite.name in asked.suite:
            lost += run(
                suite,
                [place for place in suite.places if place in asked.place],
                asked.folder / suite.name.replace(" ", ""),
                asked.slice,
                asked.most,
            )
    return min(lost, 1)


def run(suite: Suite, places: Sequence[str], home: Path, every: int, most: int) -> int:
    """Run a suite in these views; return the number of lost tests."""
    python, source = installed(suite, home)
    found = collected(suite, python, source)
    tests = found[:: max(every, -(-len(found) // most))]
    local = outcome(suite, python, source, LOCAL, tests)
    passed = [test for test in tests if test in local]
    print(f"{suite.name}: {len(tests)} tests, {len(passed)} pass on a local file system", flush=True)
    lost_tests = 0
    for place in places:
        by_design = [test for test in passed if reason_of(suite, place, test) is not None]
        tried = [test for test in passed if reason_of(suite, place, test) is None]
        here = outcome(suite, python, source, place, tried)
        lost = [test for test in tried if test not in here]
        if lost:
            again = outcome(suite, python, source, LOCAL, lost)
            here = outcome(suite, python, source, place, lost)
            lost = [test for test in lost if test in again and test not in here]
        numbers = f"{len(tried) - len(lost)} pass, {len(lost)} are lost, {len(by_design)} cannot pass by design and were not run"
        print(f"{suite.name} in {place}/: {numbers}", flush=True)
        for test in lost:
            print(f"  lost: {test}", flush=True)
        lost_tests += len(lost)
    return lost_tests


def reason_of(suite: Suite, place: str, test: str) -> str | None:
    """Return why a test is lost by design; None if it is not."""
    return next(
        (each.reason for each in LOST if (each.suite, each.place) == (suite.name, place) and re.search(each.tests, test)), None
    )


def installed(suite: Suite, home: Path) -> tuple[Path, Path]:
    """Return the Python of the suite's environment, and the folder in which its tests run; both are created if missing."""
    python, source, done = home / "env/bin/python", home / "source", home / "installed"
    wanted = repr(suite)
    if not done.exists() or done.read_text() != wanted:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        subprocess.run([sys.executable, "-m", "venv", home / "env"], check=True)
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "install", *suite.requirements], check=True)
        source.mkdir()
        if suite.source is not None:
            subprocess.run([*pip, "download", "--no-deps", "--no-binary", ":all:", "--dest", home, suite.source], check=True)
            shutil.unpack_archive(next(home.glob("*.tar.gz")), home / "unpacked")
            shutil.copytree(next((home / "unpacked").iterdir()), source, dirs_exist_ok=True)
        done.write_text(wanted)
    if suite.source is None:
        # Else pytest takes the configuration of this project, if the folder is in it.
        (source / "pytest.ini").write_text("[pytest]\n")
    for module in suite.modules:
        shutil.copy(Path(__file__).with_name(module), source)
    return python, source


def collected(suite: Suite, python: Path, source: Path) -> list[str]:
    """Return the names of all tests."""
    command = [python, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *suite.arguments]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    tests = [line for line in done.stdout.splitlines() if "::" in line and not line.startswith(("ERROR", "FAILED"))]
    if not tests:
        raise SystemExit(f"{suite.name}: no tests\n{done.stdout}{done.stderr}")
    return tests


def outcome(suite: Suite, python: Path, source: Path, place: str, tests: Sequence[str]) -> set[str]:
    """Run ``tests`` with their temporary folders in a place; return those that pass."""
    with folder_in(place) as (folder, beside):
        temporary = folder / "tmp"
        temporary.mkdir()
        (beside / "report").mkdir()
        (beside / "tests").write_text("\n".join(tests))
        # The names are too long for a command line: a plugin deselects all others, and sets the temporary folder.
        (beside / "selected.py").write_text(_SELECTED)
        env = os.environ | {
            "TMPDIR": str(temporary),
            "PYTHONPATH": str(beside),
            "OUTSIDE_TESTS": str(beside / "tests"),
            "OUTSIDE_REPORT": str(beside / "report"),
            "OUTSIDE_INSIDE": "yes" if suite.inside else "",
        }
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "selected", "-n", "2", f"--timeout={_TIMEOUT}"]
        command += [f"--basetemp={folder / 'pytest'}", *suite.arguments]
        subprocess.run(command, cwd=source, env=env, stdout=(beside / "output").open("w"), stderr=subprocess.STDOUT, check=False)
        return {line for report in (beside / "report").iterdir() for line in report.read_text().splitlines()}


_SELECTED = """
import os
import tempfile
import unittest

# Where TMPDIR refuses files with random names, as views of hierarchies do, tempfile takes another folder.
tempfile.tempdir = os.environ["TMPDIR"]
wanted = set(open(os.environ["OUTSIDE_TESTS"]).read().split("\\n"))


def pytest_configure(config):
    # Not in the process that starts the workers, which find their configuration by the working directory.
    if os.environ["OUTSIDE_INSIDE"] and hasattr(config, "workerinput"):
        os.mkdir(folder := os.path.join(os.environ["TMPDIR"], config.workerinput["workerid"]))
        os.chdir(folder)


def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if item.nodeid in wanted]
    # unittest's hook, in which test_io completes its classes.
    for module in {getattr(item, "module", None) for item in items}:
        if hasattr(module, "load_tests"):
            module.load_tests(unittest.defaultTestLoader, unittest.TestSuite(), None)


def pytest_runtest_logreport(report):
    if report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
        with open(os.path.join(os.environ["OUTSIDE_REPORT"], str(os.getpid())), "a") as file:
            file.write(report.nodeid + "\\n")
"""


@contextmanager
def folder_in(place: str) -> Iterator[tuple[Path, Path]]:
    """Yield a folder in a view of an empty store (``local``: on a local file system), and a local folder."""
    with tempfile.TemporaryDirectory(prefix="zarrfs-outside-") as name:
        beside = Path(name)
        if place == LOCAL:
            yield beside, beside
            return
        store, mountpoint = beside / "store", beside / "mnt"
        store.mkdir()
        mountpoint.mkdir()
        zarrfs = [sys.executable, "-m", "zarrfs"]
        if place in _ROOTS:
            document, content = _ROOTS[place]
            (store / document).write_text(content)
        (beside / "cache").mkdir()
        subprocess.run([*zarrfs, "mount", str(store), str(mountpoint), "--cache-dir", str(beside / "cache")], check=True, cwd=ROOT)
        try:
            yield mountpoint / place, beside
            stats = json.loads((mountpoint / ".zarrfs" / "stats.json").read_bytes())
            assert stats["store_operations"]["set"], f"no test has written into {place}/"
        finally:
            # Chunks that a suite wrote without an array are reported here, and saved in the cache folder.
            subprocess.run([*zarrfs, "umount", str(mountpoint)], check=False, cwd=ROOT, capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
