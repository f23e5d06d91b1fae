"""Hierarchies of the core draft of 2022 as the views show and change them; a reader that shares no code with zarrfs reads the store."""

from __future__ import annotations

import io
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import numcodecs
import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import trio_test

from tests.support.cases import Case, cases
from tests.support.comparing import assert_expected, in_memory, npy_path
from tests.support.length import tries
from tests.support.reader_v3_2022 import everything
from tests.support.scenes import Scene
from tests.support.stores import contents, fill
from tests.support.trees import every_file, load, read, tree_over
from zarrfs.errors import DirectoryNotEmpty, MetadataError, NameInvalid, NoSuchEntry
from zarrfs.keys import Key
from zarrfs.stores.base import Store
from zarrfs.stores.capabilities import Capabilities
from zarrfs.stores.memory import MemoryStore
from zarrfs.transformers.forwarding import ForwardingStore

LAYOUTS = ("v3_draft2022_seed", "v3_draft2022_zarrpython", "v3_draft2022_gdal", "v3_2020_zarrita")
ALL = [pytest.param(case, id=case.name) for layout in LAYOUTS for case in cases(layout)]
TEXT, SOFTWARE = "v3_draft2022_seed/hierarchy", "v3_draft2022_zarrpython/basic"
FORMS = pytest.mark.parametrize("form", [TEXT, SOFTWARE])
VIEWS = pytest.mark.parametrize("view", ["chunks", "zarr3"])
ELEMENTS = np.arange(12, dtype=">i2").reshape(3, 4)

GROUP = {TEXT: "foo", SOFTWARE: "grp"}
ARRAY = {TEXT: "foo/baz", SOFTWARE: "grp/a"}
META = {TEXT: "meta", SOFTWARE: "meta/root"}
DATA = {TEXT: "data", SOFTWARE: "data/root"}


def case_of(name: str) -> Case:
    return next(case for case in cases(name.partition("/")[0]) if case.name == name)


def npy(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@asynccontextmanager
async def shown(values: Mapping[str, bytes], view: str = "chunks", *, prefix: str = "", **options: Any) -> AsyncIterator[Scene]:
    store = MemoryStore()
    await fill(store, {prefix + key: value for key, value in values.items()})
    async with tree_over(store, **options) as tree:
        yield Scene(tree, store, view)


def other(scene: Scene, view: str) -> Scene:
    return Scene(scene.tree, scene.store, view)


async def nodes(scene: Scene, prefix: str = "") -> dict[str, Any]:
    """Return the nodes that the independent reader finds in the store."""
    values = await contents(scene.store)
    return everything({key[len(prefix) :]: value for key, value in values.items() if key.startswith(prefix)})


async def document(scene: Scene, key: str) -> dict[str, Any]:
    return dict(json.loads((await contents(scene.store))[key]))


# --- read -----------------------------------------------------------------------------------------------------------------


@pytest.mark.logs("read as its fallback")
@pytest.mark.parametrize("case", ALL)
@trio_test
async def test_every_array_is_read_in_every_view(case: Case) -> None:
    zarr = pytest.importorskip("zarr")
    async with shown(case.values) as scene:
        files = {path: await read(scene.tree, path) async for path in every_file(scene.tree) if not path.startswith("raw/")}
        for node in case.nodes("array"):
            assert_expected(case, node, await load(scene.tree, f"npy/{npy_path(case, node)}"))
            assert f"chunks{node['path']}/.zarray" in files
    final = in_memory({path.removeprefix("zarr3/"): value for path, value in files.items() if path.startswith("zarr3/")})
    for node in case.nodes("array"):
        array = zarr.open_array(final, path=node["path"].strip("/"), mode="r", zarr_format=3)
        assert_expected(case, node, np.asarray(array[...]))


@pytest.mark.parametrize("names", [["c"], ["c0"], ["c", "c0"], []])
@FORMS
@trio_test
async def test_the_chunk_of_a_scalar_is_found_under_either_name(form: str, names: list[str]) -> None:
    """zarrita 2020 has the keys of the software, and the scalar of the text."""
    meta, data = META[form], DATA[form]
    array = {
        "shape": [],
        "data_type": "<i4",
        "chunk_grid": {"type": "regular", "chunk_shape": [], "separator": "/"},
        "chunk_memory_layout": "C",
        "fill_value": 7,
        "extensions": [],
        "attributes": {},
    }
    usual = "c" if form == TEXT else "c0"
    values = {
        "zarr.json": case_of(form).values["zarr.json"],
        f"{meta}/s.array.json": json.dumps(array).encode(),
        **{
            f"{data}/s/{name}": bytes([index + 1, 0, 0, 0])
            for index, name in enumerate(sorted(names, key=lambda each: each != usual))
        },
    }
    async with shown(values, "npy") as scene:
        assert await load(scene.tree, "npy/s.npy") == (1 if names else 7)
        await scene.write("s.npy", npy(np.array(99, "<i4")))
        stored = await contents(scene.store)
    expected = {usual} if not names or usual in names else set(names)
    assert {key for key in stored if stored[key] == bytes([99, 0, 0, 0])} == {f"{data}/s/{name}" for name in expected}


@trio_test
async def test_an_entry_point_that_cannot_be_understood_is_told() -> None:
    case = case_of(TEXT)
    entry = json.loads(case.values["zarr.json"]) | {"extensions": [{"extension": "http://e.org/x", "must_understand": True}]}
    for prefix, name in (("", "array.unsupported.txt"), ("below/", "below.unsupported.txt")):
        async with shown(dict(case.values) | {"zarr.json": json.dumps(entry).encode()}, prefix=prefix) as scene:
            assert name in await scene.names()
            assert b"http://e.org/x" in await scene.read(name)


@trio_test
async def test_one_bad_array_hides_no_other() -> None:
    case = case_of(SOFTWARE)
    bad = {"meta/root/grp/bad.array.json": b'{"shape": "no"}', "meta/root/grp/worse.array.json": b"\xff"}
    async with shown(case.values | bad) as scene:
        assert await scene.names("grp") >= {"a", "b_dot", "bad.unsupported.txt", "worse.unsupported.txt"}
        assert b"shape" in await scene.read("grp/bad.unsupported.txt")


@pytest.mark.logs("quux")
@trio_test
async def test_a_fallback_is_told_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    async with shown(case_of("v3_draft2022_seed/extensions").values, "npy") as scene:
        for _ in range(2):
            await scene.names()
            await scene.read("unknown_with_fallback.npy")
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert sum('/unknown_with_fallback: data type "quux16"' in message for message in told) == 1
    assert len(told) == 2


@trio_test
async def test_fallbacks_can_be_refused_by_the_mount() -> None:
    case = case_of("v3_draft2022_seed/extensions")
    async with shown(case.values, "npy", dialect_choices="v3_2022.fallback=refuse") as scene:
        assert {"unknown_with_fallback.unsupported.txt", "datetime.npy", "S4.npy"} <= await scene.names()


# --- created --------------------------------------------------------------------------------------------------------------


@FORMS
@trio_test
async def test_new_nodes_have_the_form_of_the_store(form: str) -> None:
    async with shown(case_of(form).values) as scene:
        before = await contents(scene.store)
        await scene.mkdir("new")
        await scene.mkdir("new/inner")
        await other(scene, "npy").write("new/inner/x.npy", npy(ELEMENTS))
        await scene.write("new/inner/x/.zattrs", {"units": "m"})
        await scene.write("new/.zattrs", {"title": "t"})
        found = await nodes(scene)
        after = await contents(scene.store)
    assert found["/new"] == (None, {"title": "t"})
    assert found["/new/inner"] == (None, {})
    elements, attributes = found["/new/inner/x"]
    assert np.array_equal(elements, ELEMENTS)
    assert attributes == {"units": "m"}
    meta, data = META[form], DATA[form]
    assert after.keys() - before.keys() == {
        f"{meta}/new.group.json",
        f"{meta}/new/inner.group.json",
        f"{meta}/new/inner/x.array.json",
        f"{data}/new/inner/x/c0/0",
    }
    assert {key: after[key] for key in before} == before


@trio_test
async def test_a_hierarchy_is_made_in_an_empty_store() -> None:
    async with shown({}, new_dialect="v3_2022") as scene:
        assert await other(scene, "npy").names() == set()
        await scene.mkdir("g")
        assert "g" in await scene.names()
        assert await other(scene, "npy").names() == {"g"}
        await other(scene, "npy").write("g/x.npy", npy(ELEMENTS))
        await other(scene, "npy").write("top.npy", npy(np.arange(5, dtype="c8")))
        found = await nodes(scene)
        keys = set(await contents(scene.store))
        compressor = (await document(scene, "meta/root/g/x.array.json"))["compressor"]
    assert keys == {
        "zarr.json",
        "meta/root/g.group.json",
        "meta/root/g/x.array.json",
        "meta/root/top.array.json",
        "data/root/g/x/c0/0",
        "data/root/top/c0",
    }
    assert compressor["codec"] == "https://purl.org/zarr/spec/codec/gzip/1.0"
    assert np.array_equal(found["/g/x"][0], ELEMENTS)
    assert np.array_equal(found["/top"][0], np.arange(5))


@trio_test
async def test_an_array_can_be_the_root_of_a_new_hierarchy() -> None:
    async with shown({}, new_dialect="v3_2022") as scene:
        zarray = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<i2", "fill_value": 3, "order": "C"}
        await scene.write(".zarray", zarray | {"compressor": None, "filters": None})
        await scene.write("0", np.array([1, 2], "<i2").tobytes())
        found = await nodes(scene)
        keys = set(await contents(scene.store))
    assert keys == {"zarr.json", "meta/root.array.json", "data/root/c0"}
    assert found["/"][0].tolist() == [1, 2, 3, 3]


@FORMS
@pytest.mark.parametrize(
    "dtype", ["|b1", "<u8", ">f4", "<c16", "|S3", "<U2", "|V5", "<M8[ns]", "<m8[D]", [("a", "<i2"), ("b", ">f8", (2,))]]
)
@trio_test
async def test_arrays_of_every_kind_are_made_by_copying_a_file(form: str, dtype: Any) -> None:
    elements = np.frombuffer(bytes(range(1, 1 + 6 * np.dtype(dtype).itemsize)), dtype)
    if np.dtype(dtype).kind in "bU":
        elements = np.array([0, 1, 0, 1, 1, 1]).astype(dtype)
    async with shown(case_of(form).values, "npy") as scene:
        await scene.write("made.npy", npy(elements))
        stored, _ = (await nodes(scene))["/made"]
        again = await load(scene.tree, "npy/made.npy")
    assert again.dtype == np.dtype(dtype).newbyteorder("<")
    assert again.tobytes() == elements.astype(again.dtype).tobytes()
    assert stored.astype(again.dtype, copy=False).tobytes() == again.tobytes()


@FORMS
@trio_test
async def test_an_array_at_the_root_is_read_written_and_erased(form: str) -> None:
    case, name = case_of(form), {TEXT: "foo/nocodecs", SOFTWARE: "implicit/deep/d"}[form]
    at = {TEXT: "meta/array.json", SOFTWARE: "meta/root.array.json"}[form]
    values = {"zarr.json": case.values["zarr.json"], at: case.values[f"{META[form]}/{name}.array.json"]}
    values |= {key.replace(f"/{name}/", "/"): value for key, value in case.values.items() if f"/{name}/c" in key}
    before = everything(values)["/"][0]
    assert before is not None
    async with shown(values, "npy") as scene:
        (shown_as,) = await scene.names()
        assert np.array_equal(await load(scene.tree, f"npy/{shown_as}"), before)
        await scene.write(shown_as, npy(before[::-1]))
        await other(scene, "chunks").write(".zattrs", {"x": 1})
        elements, attributes = (await nodes(scene))["/"]
        assert np.array_equal(elements, before[::-1])
        assert attributes == {"x": 1}
        await scene.unlink(shown_as)
        assert set(await contents(scene.store)) == {"zarr.json"}


DTYPES = [
    "|b1",
    "|u1",
    "<i2",
    ">u4",
    "<i8",
    "<f2",
    ">f4",
    "<f8",
    "<c8",
    "|S3",
    "<U2",
    "<M8[s]",
    "|V5",
    [("a", "<i2"), ("b", ">f8")],
]
CODECS = [
    "auto",
    "none",
    "blosc:cname=zstd:clevel=3",
    "numcodecs.zlib:level=1",
    "numcodecs.bz2:level=1",
    "numcodecs.lz4:acceleration=1",
    "gzip:level=9",
]


@tries(60)
@given(data=st.data())
def test_any_array_is_read_by_the_other_reader_as_it_was_copied(data: st.DataObject) -> None:
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
    shape = tuple(data.draw(st.lists(st.integers(1, 6), max_size=3)))
    raw = np.random.default_rng(data.draw(st.integers(0, 9))).integers(0, 2, (int(np.prod(shape)), dtype.itemsize), np.uint8)
    elements = raw[:, 0].astype(dtype) if dtype.kind == "U" else raw.view(dtype)
    elements = np.array(elements.reshape(shape), order=data.draw(st.sampled_from("CF")))
    form = data.draw(st.sampled_from([TEXT, SOFTWARE]))
    options = {
        "new_codecs": data.draw(st.sampled_from(CODECS)),
        "new_chunks": data.draw(st.sampled_from(["auto", "none", "2", "3x2"])),
    }

    async def copy() -> tuple[Any, Any]:
        async with shown({"zarr.json": case_of(form).values["zarr.json"]}, "npy", **options) as scene:
            await scene.write("x.npy", npy(elements))
            return (await nodes(scene))["/x"][0], await load(scene.tree, "npy/x.npy")

    stored, again = trio.run(copy)
    little = elements.astype(dtype.newbyteorder("<"))
    assert again.tobytes() == little.tobytes()
    assert stored.astype(little.dtype).tobytes() == little.tobytes()


@trio_test
async def test_names_that_the_text_does_not_allow_are_not_made() -> None:
    async with shown(case_of(SOFTWARE).values) as scene:
        for name in ("é", "a b", "..."):
            with pytest.raises(NameInvalid):
                await scene.mkdir(name)


# --- changed --------------------------------------------------------------------------------------------------------------


@FORMS
@trio_test
async def test_chunks_are_written_with_the_array_s_own_codecs_under_its_own_keys(form: str) -> None:
    name = {TEXT: "foo/F_big", SOFTWARE: "grp/c_blosc_F"}[form]
    async with shown(case_of(form).values) as scene:
        before = await contents(scene.store)
        wanted = (await nodes(scene))[f"/{name}"][0].copy()
        chunk = json.loads(await scene.read(f"{name}/.zarray"))
        shape, dtype = chunk["chunks"], np.dtype(chunk["dtype"])
        new = np.arange(100, 100 + shape[0] * shape[1], dtype=dtype).reshape(shape)
        await scene.write(f"{name}/1.0", new.tobytes())
        wanted[shape[0] : 2 * shape[0], : shape[1]] = new[: wanted.shape[0] - shape[0]]
        found = (await nodes(scene))[f"/{name}"][0]
        after = await contents(scene.store)
    assert np.array_equal(found, wanted)
    assert {key for key in after if after[key] != before.get(key)} == {f"{DATA[form]}/{name}/c1/0"}


@pytest.mark.parametrize(
    ("layout", "name"), [("v3_draft2022_seed/sharded", "gaps_reversed"), ("v3_draft2022_zarrpython/sharded", "grp/s")]
)
@trio_test
async def test_chunks_in_shards_are_written(layout: str, name: str) -> None:
    async with shown(case_of(layout).values, "npy", shard_delay="0") as scene:
        before = (await nodes(scene))[f"/{name}"][0]
        new = np.arange(before.size, dtype=before.dtype).reshape(before.shape)
        await scene.write(f"{name}.npy", npy(new))
        assert np.array_equal((await nodes(scene))[f"/{name}"][0], new)


@trio_test
async def test_a_stack_of_two_is_read_and_written() -> None:
    sharding = {"extension": "https://purl.org/zarr/spec/storage_transformers/sharding/1.0", "type": "indexed"}
    stack = [sharding | {"configuration": {"chunks_per_shard": counts}} for counts in ([2, 1], [1, 3])]
    values = {key: case_of(SOFTWARE).values[key] for key in ("zarr.json", "meta/root/grp/a.array.json")}
    array = json.loads(values["meta/root/grp/a.array.json"]) | {"storage_transformers": stack}
    values["meta/root/grp/a.array.json"] = json.dumps(array).encode()
    elements = np.arange(70, dtype="<f8").reshape(10, 7)
    async with shown(values, "npy", shard_delay="0") as scene:
        await scene.write("grp/a.npy", npy(elements))
        assert np.array_equal((await nodes(scene))["/grp/a"][0], elements)
        keys = {key for key in await contents(scene.store) if key.startswith("data")}
        assert np.array_equal(await load(scene.tree, "npy/grp/a.npy"), elements)
    assert keys == {"data/root/grp/a/c0/0", "data/root/grp/a/c1/0"}


@FORMS
@VIEWS
@trio_test
async def test_attributes_are_written_into_the_node_s_own_document(form: str, view: str) -> None:
    async with shown(case_of(form).values, view) as scene:
        before = await contents(scene.store)
        for path in (ARRAY[form], GROUP[form]):
            if view == "chunks":
                await scene.write(f"{path}/.zattrs", {"new": [1, {"a": None}]})
            else:
                await scene.write(
                    f"{path}/zarr.json", await scene.json(f"{path}/zarr.json") | {"attributes": {"new": [1, {"a": None}]}}
                )
        after = await contents(scene.store)
        keys = {f"{META[form]}/{ARRAY[form]}.array.json", f"{META[form]}/{GROUP[form]}.group.json"}
        assert {key for key in after if after[key] != before.get(key)} == keys
        for key in keys:
            assert json.loads(after[key]) == json.loads(before[key]) | {"attributes": {"new": [1, {"a": None}]}}


DELTA = {"id": "delta", "dtype": "<i4"}


def filtered() -> dict[str, bytes]:
    """Return a store with one array, whose filter is hidden in its attributes."""
    values = {key: case_of(SOFTWARE).values[key] for key in ("zarr.json", "meta/root/grp/b_dot.array.json")}
    array = json.loads(values["meta/root/grp/b_dot.array.json"]) | {"attributes": {"filters": [DELTA], "x": 1}}
    return values | {"meta/root/grp/b_dot.array.json": json.dumps(array).encode()}


@trio_test
async def test_hidden_filters_are_shown_applied_and_kept() -> None:
    elements = np.arange(30, dtype="<i4").reshape(5, 6) ** 2
    async with shown(filtered()) as scene:
        await other(scene, "npy").write("grp/b_dot.npy", npy(elements))
        assert np.array_equal((await nodes(scene))["/grp/b_dot"][0], elements)
        assert await scene.json("grp/b_dot/.zattrs") == {"filters": [DELTA], "x": 1}
        await scene.write("grp/b_dot/.zattrs", {"y": 2})
        assert (await document(scene, "meta/root/grp/b_dot.array.json"))["attributes"] == {"filters": [DELTA], "y": 2}
        assert np.array_equal(await load(scene.tree, "npy/grp/b_dot.npy"), elements)


@trio_test
async def test_texts_of_any_length_are_read_and_written() -> None:
    """Compared with numcodecs."""
    codec, gzip = numcodecs.VLenUTF8(), numcodecs.GZip(1)

    def encoded(*texts: str) -> bytes:
        return bytes(gzip.encode(codec.encode(np.array(texts, object))))

    array = json.loads(case_of(SOFTWARE).values["meta/root/implicit/deep/d.array.json"]) | {
        "shape": [5],
        "chunk_grid": {"type": "regular", "chunk_shape": [2], "separator": "/"},
        "data_type": {"extension": "TODO: object array protocol URL", "fallback": None, "type": "|O"},
        "compressor": {"codec": "https://purl.org/zarr/spec/codec/gzip/1.0", "configuration": {"level": 1}},
        "attributes": {"filters": [{"id": "vlen-utf8"}]},
    }
    values = {
        "zarr.json": case_of(SOFTWARE).values["zarr.json"],
        "meta/root/t.array.json": json.dumps(array).encode(),
        "data/root/t/c0": encoded("a", "bcé"),
    }
    async with shown(values) as scene:
        assert list(codec.decode(await scene.read("t/0"))) == ["a", "bcé"]
        await scene.write("t/1", bytes(codec.encode(np.array(["new", "x" * 99], object))))
        stored = (await contents(scene.store))["data/root/t/c1"]
    assert list(codec.decode(gzip.decode(stored))) == ["new", "x" * 99]


@pytest.mark.logs("write failed, data lost")
@trio_test
async def test_other_filters_are_refused_when_attributes_are_written() -> None:
    async with shown(filtered()) as scene:
        before = await contents(scene.store)
        with pytest.raises(MetadataError, match="filters"):
            await scene.write("grp/b_dot/.zattrs", {"filters": [{"id": "zlib"}]})
        assert await contents(scene.store) == before


@trio_test
async def test_an_array_with_hidden_filters_is_erased_as_any_other() -> None:
    async with shown(filtered()) as scene:
        await scene.remove("grp/b_dot")
        assert not [key for key in await contents(scene.store) if "b_dot" in key]


@FORMS
@trio_test
async def test_a_shape_is_changed(form: str) -> None:
    async with shown(case_of(form).values) as scene:
        await scene.resized(ARRAY[form], [12, 7])
        found = (await nodes(scene))[f"/{ARRAY[form]}"][0]
        assert found.shape == (12, 7)
        assert np.isnan(found[10:]).all()
        assert (await load(scene.tree, f"npy/{ARRAY[form]}.npy")).shape == (12, 7)


# --- erased ---------------------------------------------------------------------------------------------------------------


@FORMS
@VIEWS
@pytest.mark.parametrize("backwards", [False, True])
@trio_test
async def test_an_explicit_group_is_erased_with_all_below_it(form: str, view: str, backwards: bool) -> None:
    """ "Erase a group or array"."""
    async with shown(case_of(form).values, view) as scene:
        before = await contents(scene.store)
        await scene.remove(GROUP[form], backwards=backwards)
        after = await contents(scene.store)
        assert GROUP[form] not in await scene.names()
        assert GROUP[form] not in await other(scene, "npy").names()
    gone = (f"{META[form]}/{GROUP[form]}.group.json", f"{META[form]}/{GROUP[form]}/", f"{DATA[form]}/{GROUP[form]}/")
    assert after == {key: value for key, value in before.items() if not key.startswith(gone)}


@FORMS
@VIEWS
@trio_test
async def test_an_array_is_erased_and_the_groups_above_it_stay(form: str, view: str) -> None:
    array = {TEXT: "implicit/deep/arr", SOFTWARE: "implicit/deep/d"}[form]
    async with shown(case_of(form).values, view) as scene:
        before = await contents(scene.store)
        await scene.remove(array)
        after = await contents(scene.store)
        assert "deep" in await scene.names("implicit")
    kept = f"{META[form]}/implicit/deep.group.json"
    assert json.loads(after.pop(kept)) == {"attributes": {}}
    assert after == {key: value for key, value in before.items() if array not in key}


@FORMS
@trio_test
async def test_an_implicit_group_is_erased(form: str) -> None:
    async with shown(case_of(form).values) as scene:
        before = await contents(scene.store)
        await scene.remove("implicit")
        after = await contents(scene.store)
        assert "implicit" not in await scene.names()
    assert after == {key: value for key, value in before.items() if "implicit" not in key}


@FORMS
@trio_test
async def test_an_array_is_erased_as_a_file(form: str) -> None:
    async with shown(case_of(form).values, "npy") as scene:
        await scene.unlink(f"{ARRAY[form]}.npy")
        assert not [key for key in await contents(scene.store) if ARRAY[form] + "/" in key or ARRAY[form] + "." in key]


@trio_test
async def test_what_lies_among_the_documents_keeps_a_group_from_being_erased() -> None:
    values = {"meta/root/h.group.json": b'{"attributes": {}}', "meta/root/h/notes.txt": b"mine"}
    async with shown(case_of(SOFTWARE).values | values) as scene:
        with pytest.raises(DirectoryNotEmpty):
            await scene.rmdir("h")
        assert values.items() <= (await contents(scene.store)).items()
        await scene.store.erase(Key("meta/root/h/notes.txt"))
        await scene.rmdir("h")
        assert "meta/root/h.group.json" not in await contents(scene.store)


@FORMS
@trio_test
async def test_a_node_is_renamed_with_every_byte_of_it(form: str) -> None:
    async with shown(case_of(form).values) as scene:
        before = await contents(scene.store)
        name = GROUP[form]
        await scene.rename(name, "moved")
        after = await contents(scene.store)
        assert {re.sub(rf"^((meta|data)/(root/)?){name}(?=[./])", r"\1moved", key): value for key, value in before.items()} == after
        await scene.rename("moved", name)
        assert await contents(scene.store) == before


# --- below another hierarchy ----------------------------------------------------------------------------------------------


@FORMS
@trio_test
async def test_a_hierarchy_in_a_folder_of_another_one(form: str) -> None:
    case = case_of(form)
    async with shown(case.values, prefix="other/deep/") as scene:
        await scene.store.set(Key("other/.zgroup"), b'{"zarr_format": 2}')
        for node in case.nodes("array"):
            assert_expected(case, node, await load(scene.tree, f"npy/other/deep{node['path']}.npy"))
        await other(scene, "npy").write(f"other/deep/{GROUP[form]}/x.npy", npy(ELEMENTS))
        await scene.mkdir("other/deep/g")
        await scene.write("other/deep/g/.zattrs", {"a": 1})
        found = await nodes(scene, "other/deep/")
        assert np.array_equal(found[f"/{GROUP[form]}/x"][0], ELEMENTS)
        assert found["/g"] == (None, {"a": 1})
        # A node beside it belongs to the surrounding hierarchy.
        await scene.mkdir("other/beside")
        await scene.sync("other")
        assert json.loads((await contents(scene.store))["other/beside/.zgroup"]) == {"zarr_format": 2}
        await scene.remove("other/deep")
        # Groups of Zarr v2 need a document in every group above them.
        assert set(await contents(scene.store)) == {".zgroup", "other/.zgroup", "other/beside/.zgroup"}


@trio_test
async def test_a_folder_that_held_nothing_but_a_hierarchy_stays() -> None:
    async with shown(case_of(TEXT).values, prefix="folder/deep/") as scene:
        await scene.store.set(Key("other/.zgroup"), b'{"zarr_format": 2}')
        await scene.remove("folder/deep")
        assert await scene.names() >= {"folder", "other"}
        assert set(await contents(scene.store)) == {".zgroup", "other/.zgroup", "folder/.zgroup"}


@FORMS
@trio_test
async def test_an_entry_point_that_comes_and_goes_makes_and_ends_its_nodes(form: str) -> None:
    values = dict(case_of(form).values)
    entry = values.pop("zarr.json")
    async with shown(values, "npy", metadata_ttl="600") as scene:
        for _ in range(2):
            assert GROUP[form] not in await scene.names()
            with pytest.raises(NoSuchEntry):
                await scene.names(GROUP[form])
            await other(scene, "raw").write("zarr.json", entry)
            assert GROUP[form] in await scene.names()
            assert len(await scene.names(GROUP[form])) >= 4
            await other(scene, "raw").unlink("zarr.json")


# --- consolidated metadata ------------------------------------------------------------------------------------------------

COPY = "meta/root/consolidated/.zmetadata"


def consolidated(values: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the values with a consolidated copy as of zarr-python 2.16."""
    found = dict(values) | {"meta/root/consolidated.group.json": b'{"attributes": {}}'}
    members = {key: json.loads(value) for key, value in found.items() if key == "zarr.json" or key.startswith("meta/")}
    return found | {COPY: json.dumps({"metadata": members, "zarr_consolidated_format": 1}).encode()}


async def copy_of(scene: Scene) -> dict[str, Any]:
    return dict((await document(scene, COPY))["metadata"])


@trio_test
async def test_the_consolidated_copy_is_no_node_and_follows_edits() -> None:
    async with shown(consolidated(case_of(SOFTWARE).values)) as scene:
        assert "consolidated" not in await scene.names() | await other(scene, "npy").names()
        await scene.write("grp/a/.zattrs", {"new": 1})
        await scene.mkdir("grp/sub")
        await other(scene, "npy").write("grp/sub/x.npy", npy(ELEMENTS))
        await scene.remove("grp/b_dot")
        await scene.remove("implicit")
        values = await contents(scene.store)
        members = await copy_of(scene)
    assert members == {
        key: json.loads(value) for key, value in values.items() if key == "zarr.json" or (key.startswith("meta/") and key != COPY)
    }


class Unlistable(ForwardingStore):
    """A store without listing, like a web server."""

    capabilities = Capabilities(list=False)


@trio_test
async def test_the_consolidated_copy_serves_stores_that_cannot_list() -> None:
    case = case_of(SOFTWARE)
    store: Store = MemoryStore()
    await fill(store, consolidated(case.values))
    async with tree_over(Unlistable(store)) as tree:
        scene = Scene(tree, store, "npy")
        assert await scene.names() == {"grp", "implicit"}
        for node in case.nodes("array"):
            assert_expected(case, node, await load(tree, f"npy{node['path']}.npy"))
