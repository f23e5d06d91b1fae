"""Every writable store, compared with a dictionary."""

from __future__ import annotations

import tempfile
from collections.abc import Callable

import pytest
import trio
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.support.length import tries
from tests.support.stores import contents, names
from zarrfs import registry
from zarrfs.errors import KeyConflict, StoreUnsupported
from zarrfs.keys import ByteRange, Key, Prefix
from zarrfs.stores.base import StorePlugin
from zarrfs.stores.opening import open_store

EXAMPLES = [plugin for plugin in registry.plugins("zarrfs.stores") if plugin.example]

# Names of prefixes and keys are distinct: a backend may accept or refuse ``a`` beside ``a/b``.
FOLDERS = st.lists(st.sampled_from(["a", "b", ".c"]), min_size=1, max_size=3).map(lambda parts: Prefix("/".join(parts) + "/"))
PREFIXES = st.one_of(st.just(Prefix("")), FOLDERS)
KEYS = st.builds(lambda prefix, name: prefix.key(name), PREFIXES, st.sampled_from(["0", "zarr.json", "1.1"]))
VALUES = st.binary(max_size=20)
RANGES = st.one_of(
    st.builds(ByteRange, st.integers(0, 25), st.one_of(st.none(), st.integers(0, 25))), st.integers(0, 25).map(ByteRange.suffix)
)


class StoreMachine(RuleBasedStateMachine):
    def __init__(self, plugin: StorePlugin) -> None:
        super().__init__()
        self.model: dict[str, bytes] = {}
        self.folder = tempfile.TemporaryDirectory()
        assert plugin.example is not None
        self.url = plugin.example(self.folder.name)

    @initialize()
    def open(self) -> None:
        self.store = trio.run(open_store, self.url)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            trio.run(self.store.aclose)
        self.folder.cleanup()

    @rule(key=KEYS, value=VALUES)
    def set(self, key: Key, value: bytes) -> None:
        trio.run(self.store.set, key, value)
        self.model[key] = value

    @rule(key=KEYS, start=st.integers(0, 25), value=VALUES, gap=st.integers(0, 3), more=VALUES)
    def set_partial_values(self, key: Key, start: int, value: bytes, gap: int, more: bytes) -> None:
        second = start + len(value) + gap
        trio.run(self.store.set_partial_values, [(key, second, more), (key, start, value)])
        whole = bytearray(self.model.get(key, b""))
        for offset, piece in ((start, value), (second, more)):
            whole.extend(bytes(max(0, offset - len(whole)) if piece else 0))
            whole[offset : offset + len(piece)] = piece
        self.model[key] = bytes(whole)

    @rule(wanted=st.lists(st.tuples(KEYS, RANGES), max_size=4))
    def get_partial_values(self, wanted: list[tuple[Key, ByteRange]]) -> None:
        got = trio.run(self.store.get_partial_values, wanted)
        expected = []
        for key, part in wanted:
            value = self.model.get(key)
            if value is None:
                expected.append(None)
            elif part.start is None:
                expected.append(value[len(value) - min(part.length or 0, len(value)) :])
            else:
                expected.append(value[part.start :][: part.length])
        assert [None if value is None else bytes(value) for value in got] == expected

    @rule(keys=st.lists(KEYS, max_size=3))
    def erase_values(self, keys: list[Key]) -> None:
        trio.run(self.store.erase_values, keys)
        for key in keys:
            self.model.pop(key, None)

    @rule(prefix=PREFIXES)
    def erase_prefix(self, prefix: Prefix) -> None:
        trio.run(self.store.erase_prefix, prefix)
        self.model = {key: value for key, value in self.model.items() if not key.startswith(prefix)}

    @rule(old=KEYS, new=KEYS)
    def rename(self, old: Key, new: Key) -> None:
        if self.attempt(lambda: self.store.rename(old, new)):
            self.model[new] = self.model.pop(old)

    @rule(old=FOLDERS, new=FOLDERS)
    def rename_prefix(self, old: Prefix, new: Prefix) -> None:
        if self.attempt(lambda: self.store.rename_prefix(old, new)):
            assert old == new or not any(key.startswith(new) for key in self.model)
            self.model = {new + key[len(old) :] if key.startswith(old) else key: value for key, value in self.model.items()}

    @rule(keys=st.lists(KEYS, max_size=2))
    def sync(self, keys: list[Key]) -> None:
        trio.run(self.store.sync, keys)

    @rule(prefix=PREFIXES)
    def list_dir(self, prefix: Prefix) -> None:
        found = trio.run(names, self.store, prefix)
        below = {key[len(prefix) :]: len(value) for key, value in self.model.items() if key.startswith(prefix)}
        assert {name: size for (name, is_prefix), size in found.items() if not is_prefix} == {
            name: size for name, size in below.items() if "/" not in name
        }
        # A folder of files keeps folders that became empty.
        assert {name for name, is_prefix in found if is_prefix} >= {name.partition("/")[0] for name in below if "/" in name}

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if hasattr(self, "store"):
            assert trio.run(contents, self.store) == self.model

    def attempt(self, operation: Callable[..., object]) -> bool:
        async def run() -> bool:
            try:
                return bool(await operation())  # type: ignore[misc]
            except (KeyConflict, StoreUnsupported):
                return False

        return trio.run(run)


@pytest.mark.parametrize("plugin", EXAMPLES, ids=lambda plugin: plugin.name)
def test_a_store_is_a_dictionary(plugin: StorePlugin) -> None:
    run_state_machine_as_test(lambda: StoreMachine(plugin), settings=tries(25, stateful_step_count=20, database=None))
