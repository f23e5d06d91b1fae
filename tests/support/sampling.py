"""Selection of the cases of a test in a complete run: a sample, or all of them in `make soak`.

A test that mounts once for each combination of its parameters runs for as many of them as are needed to cover each value of each
parameter once (``make test``), or each pair of values (``.ci/run``). With fewer examples, this holds for every test. A run of a given
file, test or keyword includes every case.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable

import pytest

from tests.support import length

# The number of cases of a test that run in any case.
_FEW = 1 if length.LEAST else 4


def is_whole_run(config: pytest.Config) -> bool:
    """Return True if no specific tests were requested."""
    asked = config.getoption("keyword") or config.getoption("lf", False)
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not asked


def left_out(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return the cases outside the sample."""
    tests: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and (length.LEAST or _mounts(item)):
            tests[item.nodeid.partition("[")[0]].append(item)
    strength = 2 if length.MARKED else 1
    return {each for cases in tests.values() if len(cases) > _FEW for each in _beyond(cases, strength)}


def _mounts(item: pytest.Item) -> bool:
    return item.get_closest_marker("fuse") is not None or item.get_closest_marker("many_cases") is not None


def _beyond(cases: list[pytest.Function], strength: int) -> list[pytest.Function]:
    """Return the cases with no new combination of ``strength`` values.

    Selects greedily: always the case with the most new combinations.
    """
    # These are not run in any case.
    running = [
        each
        for each in cases
        if not each.get_closest_marker("soak") and (length.MARKED or not each.get_closest_marker("full_length"))
    ]
    new = {case: _combinations(case, strength) for case in running}
    while new:
        best = max(new, key=lambda case: len(new[case]))
        seen = new.pop(best)
        if not seen:
            return [best, *new]
        for case in new:
            new[case] = new[case] - seen
    return []


def _combinations(case: pytest.Function, strength: int) -> set[object]:
    values = [(name, value if isinstance(value, str | int) else id(value)) for name, value in case.callspec.params.items()]
    return set(itertools.combinations(values, min(strength, len(values))))
