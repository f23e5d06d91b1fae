"""Threads that open, read, write, rename, remove and replace at random: see `tests.support.random_model`."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support import random_layouts as layouts
from tests.support.length import FULL, MARKED
from tests.support.mounting import mounted
from tests.support.random_layouts import Layout
from tests.support.random_model import Illegal
from tests.support.random_operations import Operations

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(4000)]

SECONDS = float(os.environ.get("ZARRFS_MODEL_SECONDS", "900" if FULL else "8" if MARKED else "4"))
SEED = os.environ.get("ZARRFS_MODEL_SEED")

AT_ONCE = ("--shard-delay", "0")
ASKING = ("--no-watch", "--metadata-ttl", "0")
OLD_NEWS = ("--no-watch", "--metadata-ttl", "1", "--shard-delay", "0.3")


def setups() -> Iterator[Any]:
    """Yield the layout, the number of mounts and options of each test."""
    yield pytest.param(layouts.V3, 1, (), id="default")
    yield pytest.param(layouts.V3, 1, AT_ONCE, id="no delay")
    yield pytest.param(layouts.V3, 1, ASKING, id="no watch")
    yield pytest.param(layouts.V3, 1, OLD_NEWS, id="old news")
    yield pytest.param(layouts.V2_CONSOLIDATED, 1, (), id="v2")
    yield pytest.param(layouts.V3, 2, (), id="two mounts")
    yield pytest.param(layouts.V3_PLANES, 1, (), id="planes")
    for layout, count, options, name in [
        (layouts.V2, 2, (), "v2, two mounts"),
        (layouts.V2, 1, OLD_NEWS, "v2, old news"),
        (layouts.V2_CONSOLIDATED, 2, AT_ONCE, "v2, one copy"),
        (layouts.V3_CONSOLIDATED, 1, (), "copy"),
        (layouts.V2_PLANES, 1, (), "v2, planes"),
        (layouts.V0_FILES, 1, (), "v0"),
        (layouts.V0_FILES, 2, OLD_NEWS, "v0, two mounts, old news"),
        (layouts.V1_FILES, 1, (), "v1"),
        (layouts.V3_2019, 1, (), "2019"),
        (layouts.V3_2022, 1, (), "2022"),
        (layouts.V3_2022_SHARDS, 1, AT_ONCE, "2022, shards"),
        (layouts.V3, 2, AT_ONCE, "two mounts, no delay"),
        (layouts.V3, 2, OLD_NEWS, "two mounts, old news"),
        (layouts.V3, 2, (*ASKING, *AT_ONCE), "two mounts, asking"),
        (layouts.V3_PLANES, 2, (), "planes, two mounts"),
    ]:
        yield pytest.param(layout, count, options, id=name, marks=pytest.mark.full_length)


@pytest.mark.parametrize(("layout", "count", "options"), [*setups()])
def test_every_element_is_where_an_order_of_what_was_done_puts_it(
    layout: Layout, count: int, options: tuple[str, ...], tmp_path: Path
) -> None:
    seed = int(SEED) if SEED else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}: ZARRFS_MODEL_SEED={seed} asks for the same chances")
    store, aside = tmp_path / "store", tmp_path / "aside"
    layout.make_store(store)
    aside.mkdir()
    model = Operations(store, aside, seed, layout, mounts=count)
    model.add_arrays(4)
    layout.consolidate(store)
    new = ("--new-chunks", "x".join(map(str, layout.geometry.chunk_shape)), "--new-dialect", layout.dialect)
    fixed = ("--new-codecs", "none", *new, "--resize-erases", "--cache-dir", str(tmp_path / "cache"))
    with ExitStack() as stack:
        mounts = [stack.enter_context(mounted(store, *fixed, *layout.options, *options, ends_with=None)) for _ in range(count)]
        # The kernel keeps names renamed by another program for as long as metadata may be outdated. Changes through another mount are
        # visible when they are noticed, and what that has queued for a shard is not.
        is_at_once = options[-2:] == AT_ONCE
        model.demands_news = FULL and options != OLD_NEWS and (count == 1 or options == (*ASKING, *AT_ONCE))
        model.has_late_writes = count > 1 and not is_at_once
        model.run([each.path for each in mounts], SECONDS, threads=4)
        ended, log = "", ""
        for each in mounts:
            done = each.umount()
            assert done.returncode in (0, 7), done.stderr
            ended, log = ended + f"{done.returncode} {done.stderr}\n", log + each.log()
    print(dict(model.done), dict(model.refused))
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]
    try:
        assert model.check_store() or not list(store.rglob("c"))
    except (AssertionError, ValueError) as error:
        rescued = sorted(str(path) for path in (tmp_path / "cache").rglob("*") if path.is_file())
        raise Illegal(f"{error}\n{ended}\n{rescued}\n{log[-5000:]}\n{model.history(str(error))}") from error
    assert sum(model.done.values()) > 20
