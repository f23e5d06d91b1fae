"""The report that a daemon logs on SIGUSR1: keys, and never values."""

from __future__ import annotations

import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from zarrfs.daemon import waiting_for
from zarrfs.in_flight import InFlight
from zarrfs.keys import Key


@trio_test
async def test_operations_are_told_with_keys_and_sizes_but_without_values() -> None:
    operations = InFlight()
    for what in (
        ("set", Key("a/0"), b"secret value"),
        ("set", Key("a/1"), memoryview(bytearray(b"secret value"))),
        ("get_partial_values", [(Key("a/2"), object())]),
        ("erase_values", [Key("a/3"), Key("a/4")]),
        ("erase_values", ()),
        ("watch", lambda: None),
        ("get", Key("x" * 1000), None, 5),
    ):
        operations.begin(*what)
    lines = [line.partition(": ")[2] for line in waiting_for.report((), operations) if line.startswith("store operation")]
    assert lines[:6] == [
        "set('a/0', 12 bytes)",
        "set('a/1', 12 bytes)",
        "get_partial_values([['a/2', ...]])",
        "erase_values(['a/3', ...])",
        "erase_values([])",
        "watch(function)",
    ]
    assert lines[6].startswith("get('xxx") and lines[6].endswith("..., None, 5)") and len(lines[6]) < 400


@trio_test
async def test_tasks_of_one_kind_are_told_in_one_line_and_very_many_lines_are_cut() -> None:
    async def waits() -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(waits)
        await wait_all_tasks_blocked()
        lines = waiting_for.report(((float(number), f"read {number}") for number in range(1000)), InFlight())
        nursery.cancel_scope.cancel()
    assert lines[0].startswith("in progress: 1000 requests, 0 store operations, ")
    assert any("waits" in line and "(5 of them)" in line for line in lines)
    assert any(line.startswith("and ") and line.endswith(" more") for line in lines) and len(lines) < 500
