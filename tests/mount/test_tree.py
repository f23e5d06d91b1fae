"""The tree suite through the kernel, on one mount."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from tests.support.drivers import KernelDriver
from tests.support.mounting import Mounted, mounted
from tests.support.small_stores import SMALL, write
from tests.support.tree_suite import SCENARIOS, Scenario

pytestmark = pytest.mark.fuse


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    folder = tmp_path_factory.mktemp("tree")
    # Some scenarios fail to store, which umount reports.
    with mounted(write(folder / "store", {".zgroup": SMALL[".zgroup"]}), "--cache-dir", str(folder), ends_with=None) as mount:
        yield mount
        assert "Traceback" not in mount.log()
        assert mount.umount().returncode in (0, 7)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_tree(scenario: Scenario, mount: Mounted) -> None:
    async def main() -> None:
        await scenario(KernelDriver(mount))

    trio.run(main)
