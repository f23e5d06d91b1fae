"""Selection of the cases of a test in a complete run: a sample, or all of them in `make soak`.

A test that mounts once for each combination of its parameters runs for as many of them as are needed to cover each value of each
parameter once. In ``.ci/run`` it also runs for those that cover the most pairs of values, up to six cases in all, and a test marked
``many_cases`` for those that cover each pair. With fewer examples, this holds for every test. A run of a given file, test or keyword
includes every case.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator

import pytest

from tests.support import length

# The number of cases of a test that run in any case.
_FEW = 1 if length.LEAST else 6


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
    return {each for cases in tests.values() if len(cases) > _FEW for each in _beyond(cases)}


def _mounts(item: pytest.Item) -> bool:
    return item.get_closest_marker("fuse") is not None or _has_many(item)


def _has_many(item: pytest.Item) -> bool:
    return item.get_closest_marker("many_cases") is not None


def _beyond(cases: list[pytest.Function]) -> set[pytest.Item]:
    """Return the cases that do not run."""
    # These are not run in any case.
    running = [
        each
        for each in cases
        if not each.get_closest_marker("soak") and (length.MARKED or not each.get_closest_marker("full_length"))
    ]
    if length.MARKED and _has_many(cases[0]):
        return {*running}.difference(_covering(running, 2))
    chosen = list(_covering(running, 1))
    pairs = (each for each in _covering(running, 2) if each not in chosen)
    return {*running}.difference(chosen, itertools.islice(pairs, max(0, _FEW - len(chosen))))


def _covering(cases: Iterable[pytest.Function], strength: int) -> Iterator[pytest.Function]:
    """Yield cases until no other has a new combination of ``strength`` values: always that with the most new combinations."""
    new = {case: _combinations(case, strength) for case in cases}
    while new:
        best = max(new, key=lambda case: len(new[case]))
        seen = new.pop(best)
        if not seen:
            return
        yield best
        for case in new:
            new[case] = new[case] - seen


def _combinations(case: pytest.Function, strength: int) -> set[object]:
    values = [(name, value if isinstance(value, str | int) else id(value)) for name, value in case.callspec.params.items()]
    return set(itertools.combinations(values, min(strength, len(values))))
