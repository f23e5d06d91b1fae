"""Keys to be synced are few, however many were set, and none is forgotten."""

from __future__ import annotations

import pytest

from zarrfs.keys import Contents, Key
from zarrfs.keys.unsynced_keys import UnsyncedKeys


def covers(targets: dict[Key | Contents, object], key: Key) -> bool:
    return any(key == each or (isinstance(each, Contents) and key.startswith(each)) for each in targets)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("a/{}", "a/"),
        ("a/c/{}/0", "a/c/"),
        ("{}", ""),
        ("a/x{}", "a/"),
    ],
)
def test_many_keys_are_one_prefix(names: str, expected: str) -> None:
    unsynced = UnsyncedKeys()
    keys = [Key(names.format(number)) for number in range(100_000)]
    for key in keys:
        unsynced.add([key])
    assert list(unsynced.versions()) == [Contents(expected)]
    assert covers(unsynced.versions(), keys[0])
    other = Key("other/zarr.json")
    unsynced.add([other])
    assert covers(unsynced.versions(), other)


def test_few_keys_are_themselves() -> None:
    unsynced = UnsyncedKeys()
    unsynced.add([Key("a/1"), Key("b/2"), Key("a/1")])
    assert list(unsynced.versions()) == ["a/1", "b/2"]
    assert not any(isinstance(each, Contents) for each in unsynced.versions())


@pytest.mark.parametrize("count", [3, 1000])
def test_what_is_set_during_a_sync_stays(count: int) -> None:
    unsynced = UnsyncedKeys()
    unsynced.add([Key(f"a/{number}") for number in range(count)])
    during = unsynced.versions()
    again = Key("a/1")
    unsynced.add([again])
    unsynced.synced(during)
    assert len(unsynced.versions()) == 1
    assert covers(unsynced.versions(), again)
    unsynced.synced(unsynced.versions())
    assert not unsynced.versions()


def test_keys_that_are_joined_during_a_sync_stay() -> None:
    unsynced = UnsyncedKeys()
    unsynced.add([Key("a/0")])
    during = unsynced.versions()
    unsynced.add([Key(f"a/{number}") for number in range(1, 1000)])
    unsynced.synced(during)
    assert list(unsynced.versions()) == [Contents("a/")]
