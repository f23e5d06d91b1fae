"""Threads that open, read, write, rename, remove and replace at random: see `tests.support.random_model`."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import zarr

from tests.support.length import FULL, MARKED
from tests.support.mounting import mounted
from tests.support.random_model import CHUNK, Illegal, Model

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(4000)]

SECONDS = float(os.environ.get("ZARRFS_MODEL_SECONDS", "900" if FULL else "8" if MARKED else "4"))
SEED = os.environ.get("ZARRFS_MODEL_SEED")


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--shard-delay", "0"),
        ("--no-watch", "--metadata-ttl", "0"),
        ("--no-watch", "--metadata-ttl", "1", "--shard-delay", "0.3"),
    ],
    ids=["default", "no delay", "no watch", "old news"],
)
def test_every_element_is_where_an_order_of_what_was_done_puts_it(options: tuple[str, ...], tmp_path: Path) -> None:
    seed = int(SEED) if SEED else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}: ZARRFS_MODEL_SEED={seed} asks for the same chances")
    store, aside = tmp_path / "store", tmp_path / "aside"
    zarr.create_group(str(store), zarr_format=3).create_group("g")
    aside.mkdir()
    model = Model(store, aside, seed)
    model.add_undisturbed(4)
    fixed = (
        "--new-chunks",
        str(CHUNK),
        "--new-codecs",
        "none",
        "--new-dialect",
        "v3",
        "--resize-erases",
        "--cache-dir",
        str(tmp_path / "cache"),
    )
    with mounted(store, *fixed, *options, ends_with=None) as mount:
        # The kernel keeps names renamed by another program for as long as metadata may be outdated.
        model.demands_news = FULL and options[1:3] != ("--metadata-ttl", "1")
        model.run(mount.path, SECONDS, threads=4)
        ended = mount.umount()
        assert ended.returncode in (0, 7), ended.stderr
        log = mount.log()
    print(dict(model.done), dict(model.refused))
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]
    try:
        assert model.check_store() or not list(store.rglob("c"))
    except (Illegal, ValueError) as error:
        rescued = sorted(str(path) for path in (tmp_path / "cache").rglob("*") if path.is_file())
        raise Illegal(
            f"{error}\n{ended.returncode} {ended.stderr}\n{rescued}\n{log[-5000:]}\n{model.history(str(error))}"
        ) from error
    assert sum(model.done.values()) > 20
