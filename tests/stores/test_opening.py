"""From a path or URL to a store."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from trio.testing import trio_test

from zarrfs.errors import StoreNotFound, UsageError
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.opening import open_store
from zarrfs.stores.urls import StoreUrl, absolute, local_path, parse


@trio_test
async def test_the_store_in_memory() -> None:
    store = await open_store("memory:")
    assert isinstance(store, MemoryStore) and store.url == "memory:"
    with pytest.raises(UsageError):
        await open_store("memory:name")
    assert local_path("memory:") is None


@pytest.mark.parametrize("name", ["plain", "with space", "a|b", "./memory:", "s3:bucket", "caf\udce9", "x%20y"])
@trio_test
async def test_a_path_that_exists_is_that_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    for url in (name, str(tmp_path / name)):
        store = await open_store(url)
        assert isinstance(store, FolderStore)
        assert store.url == str(tmp_path / name) == local_path(url)
        await store.aclose()


@pytest.mark.parametrize("url", ["memory:", "zip:/srv/x.zip", "file:///srv/x", "s3://b/x", "memory:|unsharded:", "zip:/x|zip:a"])
def test_a_url_is_no_path_in_a_working_directory_that_somebody_prepared(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meaning() -> object:
        try:
            return parse(url)
        except UsageError as error:
            return str(error)

    before = meaning()
    (tmp_path / url).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert meaning() == before
    assert parse(f"./{url}") == StoreUrl(None, f"./{url}")


@trio_test
async def test_file_urls(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    for url in (f"file://{tmp_path}/a%20b", f"file://localhost{tmp_path}/a b", f"FILE:{tmp_path}/a b"):
        store = await open_store(url, read_only=True)
        assert store.url == str(tmp_path / "a b") and not store.capabilities.write
        assert local_path(url) == str(tmp_path / "a b")
        await store.aclose()


@pytest.mark.parametrize(
    "url",
    [
        *("", "file:relative", "file://server/share", "file://[::1", "nosuch:place", "a\0b", "memory:|zip:", "s3://b/x.zip|zip:y"),
        *("memory:|unsharded:x", "memory:|unsharded:|unsharded:", "unsharded:", "x|unsharded:|zip:y"),
    ],
)
@trio_test
async def test_what_makes_no_sense(url: str) -> None:
    with pytest.raises(UsageError) as raised:
        await open_store(url)
    assert "\n" not in str(raised.value)
    if url.startswith("nosuch"):
        assert "'nosuch'" in str(raised.value) and "dbm:, file:, lmdb:, memory:, sqlite:, zip:" in str(raised.value)


@trio_test
async def test_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for url in (f"{tmp_path}/missing", f"file://{tmp_path}/missing", f"{tmp_path}/file", f"{tmp_path}/file/below"):
        with pytest.raises(StoreNotFound) as raised:
            await open_store(url)
        assert str(tmp_path) in str(raised.value) and "\n" not in str(raised.value)


def test_local_path_follows_links(tmp_path: Path) -> None:
    os.symlink("real", tmp_path / "link")
    assert local_path(f"{tmp_path}/link/x.zarr") == str(tmp_path / "real" / "x.zarr")


@pytest.mark.parametrize("url", ["x.zarr", "x.zip|zip:a/b", "zip:x.zip", "x.zip|zip:y.zip|zip:a", "memory:"])
def test_the_layer_without_shards_is_the_last_one(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    over = parse(f"{url}|unsharded:")
    assert over == replace(parse(url), unsharded=True) and not parse(url).unsharded
    assert absolute(f"{url}|unsharded:") == f"{absolute(url)}|unsharded:"
    (tmp_path / "x|unsharded:").mkdir()
    assert not parse("x|unsharded:").unsharded
