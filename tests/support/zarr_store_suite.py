"""zarr-python's own suites for stores, with a LocalStore in the folder that the environment names.

``tests/mount/test_programs_zarr.py`` runs them in a pytest of its own, since they are written for asyncio.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis.stateful import run_state_machine_as_test
from zarr.core.buffer import Buffer, cpu
from zarr.storage import LocalStore
from zarr.testing.stateful import ZarrHierarchyStateMachine
from zarr.testing.store import StoreTests

from tests.support.length import tries

FOLDER = os.environ.get("ZARRFS_TEST_FOLDER", "")


class TestLocalStore(StoreTests[LocalStore, cpu.Buffer]):
    store_cls = LocalStore
    buffer_cls = cpu.Buffer

    async def get(self, store: LocalStore, key: str) -> Buffer:
        return self.buffer_cls.from_bytes((store.root / key).read_bytes())

    async def set(self, store: LocalStore, key: str, value: Buffer) -> None:
        path = store.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value.to_bytes())

    @pytest.fixture
    def store_kwargs(self) -> dict[str, Any]:
        return {"root": tempfile.mkdtemp(dir=FOLDER)}

    def test_store_repr(self, store: LocalStore) -> None:
        assert str(store) == f"file://{store.root.as_posix()}"

    async def test_store_supports_writes(self, store: LocalStore) -> None:
        assert store.supports_writes

    async def test_store_supports_listing(self, store: LocalStore) -> None:
        assert store.supports_listing


def test_hierarchies() -> None:
    checks = [HealthCheck.filter_too_much, HealthCheck.too_slow]
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        lambda: ZarrHierarchyStateMachine(LocalStore(tempfile.mkdtemp(dir=FOLDER))),
        settings=tries(5, stateful_step_count=12, suppress_health_check=checks),
    )
