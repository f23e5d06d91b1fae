"""The suite of readable stores over every kind of archive; archives compared with dictionaries; requests that all archives refuse."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import trio_test

from tests.stores.readable import Filled, ReadableConformance
from tests.support.archives import MAKERS
from tests.support.length import tries
from tests.support.stores import contents, names
from zarrfs import registry
from zarrfs.errors import StoreError, StoreNotFound, StoreReadOnly, StoreUnsupported, UsageError
from zarrfs.keys import ByteRange, Key, Prefix
from zarrfs.stores.base import Store
from zarrfs.stores.opening import open_store
from zarrfs.stores.urls import absolute, local_path

every_kind = pytest.mark.parametrize("kind", MAKERS)


def data_file(path: Path) -> Path:
    """Return the file of an archive that contains the values."""
    for candidate in (path / "data.mdb", path.with_name(path.name + ".dat")):
        if candidate.exists():
            return candidate
    return path


@pytest.mark.parametrize("kind", MAKERS, scope="class")
class TestArchives(ReadableConformance):
    @pytest.fixture
    def filled(self, kind: str, tmp_path: Path) -> Filled:
        @asynccontextmanager
        async def filled(values: Mapping[str, bytes]) -> AsyncIterator[Store]:
            store = await open_store(str(MAKERS[kind](tmp_path, values)))
            try:
                yield store
            finally:
                await store.aclose()

        return filled


def test_every_store_is_under_a_suite() -> None:
    plugins = registry.plugins("zarrfs.stores")
    assert {plugin.name for plugin in plugins} == {plugin.name for plugin in plugins if plugin.example} | {
        kind.partition("-")[0] for kind in MAKERS
    }


@every_kind
@trio_test
async def test_a_name_beside_a_prefix_of_the_same_name(kind: str, tmp_path: Path) -> None:
    values = {"a": b"1", "a/b": b"2", "a/b/c": b"3"}
    store = await open_store(str(MAKERS[kind](tmp_path, values)))
    assert await contents(store) == values
    assert await names(store) == {("a", False): 1, ("a", True): 0}
    await store.aclose()


@every_kind
@trio_test
async def test_by_scheme_whatever_it_is_called_and_read_only(kind: str, tmp_path: Path) -> None:
    path = MAKERS[kind](tmp_path, {"k": b"v"})
    for url in (str(path), f"{kind.partition('-')[0]}:{path}"):
        store = await open_store(url)
        assert not store.capabilities.write and store.capabilities.list and store.url == str(path)
        assert await store.get(Key("k")) == b"v"
        for change in (store.set(Key("k"), b""), store.set_partial_values([(Key("k"), 0, b"x")]), store.erase(Key("k"))):
            with pytest.raises(StoreReadOnly, match="read-only"):
                await change
        for prefix in ("", "d/"):
            with pytest.raises(StoreReadOnly):
                await store.erase_prefix(Prefix(prefix))
        with pytest.raises(StoreUnsupported):
            await store.rename(Key("k"), Key("l"))
        await store.watch(lambda changes: pytest.fail("there is no watch"))
        await store.aclose()


@every_kind
@trio_test
async def test_many_readers_at_once(kind: str, tmp_path: Path) -> None:
    values = {f"d/{number}": bytes([number]) * (number * 50) for number in range(200)}
    store = await open_store(str(MAKERS[kind](tmp_path, values)))

    async def read(number: int) -> None:
        for step in range(10):
            key = Key(f"d/{(number * 37 + step) % 200}")
            part = (await store.get_partial_values([(key, ByteRange(7, 900))]))[0]
            assert part is not None and bytes(part) == values[key][7:907]

    async with trio.open_nursery() as nursery:
        for number in range(40):
            nursery.start_soon(read, number)
    await store.aclose()


@every_kind
@trio_test
async def test_an_archive_that_another_one_replaced_gives_errors_and_never_other_bytes(kind: str, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir(), new.mkdir()
    values = {"a": b"old " * 900, "b": b"old"}
    store = await open_store(str(MAKERS[kind](old, values)))
    before = await store.get(Key("a"))
    assert before == values["a"]
    other = MAKERS[kind](new, {"z": b"new " * 300, "a": b"new " * 900, "b": b"new"})
    os.replace(data_file(other), data_file(old / other.name))
    for key in ("a", "b"):
        with pytest.raises(StoreError, match="replaced"):
            await store.get(Key(key))
    await store.aclose()


@every_kind
@trio_test
async def test_what_is_not_there_or_is_something_else(kind: str, tmp_path: Path) -> None:
    scheme = kind.partition("-")[0]
    (tmp_path / "text").write_text("something else\n" * 100)
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("missing", "text", "empty", "pipe", "folder", "text/below"):
        with pytest.raises(StoreError) as raised:
            await open_store(f"{scheme}:{tmp_path}/{name}")
        assert name in str(raised.value) and "\n" not in str(raised.value)
    for name in ("missing", "text", "empty", "pipe"):
        with pytest.raises(StoreNotFound):
            await open_store(f"{tmp_path}/{name}")


@pytest.mark.parametrize("kind", [kind for kind in MAKERS if "-" not in kind])
@trio_test
async def test_a_file_cut_short_anywhere_is_an_error_or_gives_right_bytes(kind: str, tmp_path: Path) -> None:
    values = {f"d/{number}": bytes([number + 1]) * 3000 for number in range(4)}
    path = MAKERS[kind](tmp_path, values)
    whole = data_file(path).read_bytes()
    for size in sorted({0, 1, 99, *range(0, len(whole), 1501), len(whole) - 1}):
        data_file(path).write_bytes(whole[:size])
        try:
            store = await open_store(f"{kind}:{path}")
        except StoreError:
            continue
        for key, value in values.items():
            with suppress(StoreError):
                assert await store.get(Key(key)) in (value, None)
        await store.aclose()


PARTS = st.one_of(st.sampled_from(["a", "b", "0", ".zarray", "a-", "a0"]), st.text("ab/.0ü\udcff\\", min_size=1, max_size=4))
NAMES = st.lists(PARTS, min_size=1, max_size=3).map("/".join).filter(lambda name: name[-1] != "/")
RANGES = st.one_of(
    st.builds(ByteRange, st.integers(0, 40), st.one_of(st.none(), st.integers(0, 40))), st.integers(0, 40).map(ByteRange.suffix)
)


@every_kind
@tries(40, database=None)
@given(values=st.dictionaries(NAMES.filter(lambda name: name.isprintable()), st.binary(max_size=40), max_size=12), data=st.data())
def test_an_archive_is_a_dictionary(kind: str, values: dict[str, bytes], data: st.DataObject) -> None:
    wanted = data.draw(st.lists(st.tuples(st.sampled_from([*values, "missing"]), RANGES), max_size=6))
    prefixes = data.draw(st.lists(st.sampled_from(["", "missing/", *(key[: key.rfind("/") + 1] for key in values)]), max_size=4))

    async def hold() -> None:
        with tempfile.TemporaryDirectory() as folder:
            store = await open_store(str(MAKERS[kind](Path(folder), values)))
            assert await contents(store) == values
            got = await store.get_partial_values([(Key(key), part) for key, part in wanted])
            for (key, part), found in zip(wanted, got, strict=True):
                value = values.get(key)
                if value is None or found is None:
                    assert value is found is None
                elif part.start is None:
                    assert bytes(found) == value[len(value) - min(part.length or 0, len(value)) :]
                else:
                    assert bytes(found) == value[part.start :][: part.length]
            for prefix in prefixes:
                rests = {key[len(prefix) :]: len(value) for key, value in values.items() if key.startswith(prefix)}
                expected = {(rest.partition("/")[0], "/" in rest): 0 if "/" in rest else size for rest, size in rests.items()}
                assert await names(store, prefix) == expected
                assert await store.prefix_exists(Prefix(prefix)) == bool(rests)
            await store.aclose()

    trio.run(hold)


def test_where_an_archive_lies(tmp_path: Path) -> None:
    assert local_path(str(tmp_path / "x.zip")) == os.path.realpath(tmp_path / "x.zip")


@every_kind
@trio_test
async def test_a_part_of_an_archive(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"a": b"1", "in/a": b"2", "in/side/b": b"3", "in/side/c/d": b"4", "in/side-": b"5"}
    path = MAKERS[kind](tmp_path, values)
    scheme = kind.partition("-")[0]
    monkeypatch.chdir(tmp_path)
    for url in (f"{path}|{scheme}:in/side", f"{path.name}|{scheme}:/in/side/", f"{scheme}:{path.name}|{scheme}:in/side"):
        assert local_path(url) == str(path.resolve())
        store = await open_store(url)
        assert await contents(store) == {"b": b"3", "c/d": b"4"}
        assert [key async for key in store.list_prefix(Prefix("c/"))] == ["c/d"]
        assert await names(store) == {("b", False): 1, ("c", True): 0}
        assert await store.prefix_exists(Prefix("c/")) and not await store.prefix_exists(Prefix("in/"))
        assert await store.get(Key("a")) is None and await store.get(Key("../a")) is None
        await store.aclose()
    whole = await open_store(f"{path}|{scheme}:")
    assert await contents(whole) == values
    await whole.aclose()
    with pytest.raises(StoreNotFound, match="nothing under nothere"):
        await open_store(f"{path}|{scheme}:nothere")


@pytest.mark.parametrize(
    "url", ["x.zip|zip:a|sqlite:b", "x.zip|zip:a|zip", "x.zip|zip", "x|memory:", "sqlite:x|zip:a", "memory:|zip:a", "x|nosuch:a"]
)
@trio_test
async def test_layers_that_make_no_sense(url: str) -> None:
    with pytest.raises(UsageError) as raised:
        await open_store(url)
    assert "\n" not in str(raised.value) and url in str(raised.value)


@pytest.mark.parametrize("url", ["zip:", "sqlite:", "zip:|zip:a", "zip:|unsharded:"])
@trio_test
async def test_a_kind_without_a_path_is_not_the_working_folder(url: str) -> None:
    with pytest.raises(UsageError, match=r": (zip|sqlite): is followed by a path$"):
        await open_store(url)


@trio_test
async def test_an_unknown_layer_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"supported are .*PATH\|zip:PREFIX.* and unsharded: as the last one"):
        await open_store("x|nosuch:")


def test_a_path_in_a_url_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a|zip:b").touch()
    for url, expected in {
        "x.zip": f"{tmp_path}/x.zip",
        "zip:x.zip": f"zip:{tmp_path}/x.zip",
        "x.zip|zip:a/b": f"{tmp_path}/x.zip|zip:a/b",
        "zip:x.zip|ZIP:": f"{tmp_path}/x.zip|zip:",
        "a|zip:b": f"{tmp_path}/a|zip:b",
        "x.zip|zip:in/y.zip|ZIP:b": f"{tmp_path}/x.zip|zip:in/y.zip|zip:b",
        "memory:": "memory:",
        f"file://{tmp_path}/a%20b": f"{tmp_path}/a b",
    }.items():
        assert absolute(url) == expected


async def first(most: int, listing: AsyncIterator[object]) -> None:
    """Read ``most`` entries of a listing."""
    for _ in range(most):
        await anext(listing)


@pytest.mark.parametrize("kind", ["sqlite", "lmdb"])
@trio_test
async def test_a_listing_of_names_out_of_order_ends(kind: str, tmp_path: Path) -> None:
    """Each name is looked up in a tree: a damaged one may lead back to names that were there already."""
    path = MAKERS[kind](tmp_path, {"p/b": b"1", "p/c/1": b"2"})
    file = data_file(path)
    file.write_bytes(file.read_bytes().replace(b"p/c/1", b"p/a/1"))
    store = await open_store(str(path))
    try:
        for listing in (store.list_dir(Prefix("p/")), store.list_prefix(Prefix("p/"))):
            with pytest.raises(StoreError, match="'p/a/1' is not where it belongs: the archive is damaged"):
                await first(10, listing)
    finally:
        await store.aclose()
