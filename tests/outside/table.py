"""The section of docs/CONFORMANCE.md about the test suites of other projects: the last whole run, and what is lost by design."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.outside.suites import LOST, SUITES


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a suite in a view: of ``local`` tests that pass on a local file system, ``here`` pass, ``by_design`` cannot."""

    suite: str
    place: str
    local: int
    here: int
    by_design: int = 0
    part: str = "all"


RESULTS = (
    Result("xarray", "raw", 1442, 1442),
    Result("xarray", "zarr3", 1442, 719, 723),
    Result("zarr 3", "raw", 5065, 5063, 2),
    Result("zarr 3", "zarr3", 5065, 3062, 2003),
    Result("zarr 2", "raw", 1999, 1999),
    Result("fsspec", "raw", 137, 137),
    Result("anndata", "raw", 88, 88),
    Result("ome-zarr", "raw", 356, 356),
    Result("tensorstore", "raw", 265, 265),
    Result("tensorstore", "zarr3", 265, 96, 169),
    Result("tensorstore", "chunks", 265, 65, 200),
    Result("cpython", "raw", 5074, 4873, 201),
)

_INTRODUCTION = """
## Test suites of other projects

`make outside` runs the test suites of other projects, at pinned versions, with their temporary folders on a local file system and in the
views of a mount. A test that passes there and not here is lost. Below are the results of the last run of each suite, and the tests that
are lost by design, each with its reason; a run that loses another test fails. CI runs a part of two suites. The tests of tensorstore
are those of `tests/outside`, since its package has none. CPython's are 43 modules about files, and their working directory is in the
mount, too.
"""


def rendered() -> str:
    """Return the section."""
    return "\n".join([_INTRODUCTION, *_results(), "", *_lost()]) + "\n"


def _results() -> Iterator[str]:
    titles = {suite.name: suite.title or suite.requirements[0] for suite in SUITES}
    yield "| suite | view | tests run | pass on a local file system | pass here | lost by design | lost |"
    yield "|---|---|---|---|---|---|---|"
    for each in RESULTS:
        lost = each.local - each.here - each.by_design
        numbers = f"{each.local} | {each.here} | {each.by_design} | {lost}"
        yield f"| {titles[each.suite]} | `{each.place}/` | {each.part} | {numbers} |"


def _lost() -> Iterator[str]:
    yield "| suite | view | tests, as a regular expression | reason |"
    yield "|---|---|---|---|"
    for each in LOST:
        tests = each.tests.replace("|", "&#124;")
        yield f"| {each.suite} | `{each.place}/` | `{tests}` | {each.reason} |"
