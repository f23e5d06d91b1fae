"""``mv`` of arrays and groups inside one hierarchy, in every layout: a rename of keys that keeps every byte."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.support.mounting import Mounted, mounted, run

pytestmark = pytest.mark.fuse

DIALECTS = ("v3", "v2", "v1", "v0", "v3_2022", "v3_2019")
APART = ("v3_2022", "v3_2019")
ELEMENTS = np.arange(24, dtype="<f4").reshape(4, 6)


def values(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}


def moved(before: dict[str, bytes], old: str, new: str) -> dict[str, bytes]:
    """Return the expected values after the node ``old`` (``g/a``) was moved to ``new``: the same values under other keys."""
    after = {}
    for key, value in before.items():
        for top in ("meta/root/", "data/root/", "data/", ""):
            rest = key[len(top) + len(old) :]
            if key.startswith(top + old) and (not rest or rest.startswith(("/", ".array", ".group"))):
                after[f"{top}{new}{rest}"] = value
                break
        else:
            after[key] = value
    return after


@pytest.fixture(params=DIALECTS)
def mount(request: pytest.FixtureRequest, tmp_path: Path) -> Mounted:
    store = tmp_path / "store"
    store.mkdir()
    with mounted(store, "--new-dialect", request.param, "--new-chunks", "2x3") as made:
        for name in ("g", "g/deep", "h"):
            (made.path / "npy" / name).mkdir()
        for name in ("g/a", "g/deep/b", "h/keep"):
            np.save(made.path / f"npy/{name}.npy", ELEMENTS)
            (made.path / f"chunks/{name}/.zattrs").write_text(json.dumps({"name": name}))
        if request.param != "v0":
            np.save(made.path / "npy/g/s.npy", np.float32(2.5))
        yield made
        assert not made.errors()
    assert not (store / ".zarrfs").exists()


def test_an_array_is_renamed_in_every_view(mount: Mounted) -> None:
    for view, end in (("npy", ".npy"), ("chunks", ""), ("zarr3", "")):
        before = values(mount.store)
        os.rename(mount.path / f"{view}/g/a{end}", mount.path / f"{view}/h/c{end}")
        assert values(mount.store) == moved(before, "g/a", "h/c"), view
        assert np.load(mount.path / "npy/h/c.npy").tolist() == ELEMENTS.tolist()
        assert json.loads((mount.path / "chunks/h/c/.zattrs").read_text()) == {"name": "g/a"}
        assert not (mount.path / "npy/g/a.npy").exists()
        run("mv", mount.path / f"{view}/h/c{end}", mount.path / f"{view}/g/a{end}")
        assert values(mount.store) == before, view


def test_a_group_is_renamed_with_all_below_it(mount: Mounted) -> None:
    before = values(mount.store)
    for view in ("npy", "chunks", "zarr3"):
        os.rename(mount.path / view / "g", mount.path / view / "h/moved")
        assert values(mount.store) == moved(before, "g", "h/moved"), view
        assert np.load(mount.path / "npy/h/moved/deep/b.npy").tolist() == ELEMENTS.tolist()
        os.rename(mount.path / view / "h/moved", mount.path / view / "g")
        assert values(mount.store) == before


def test_a_scalar_is_renamed(mount: Mounted) -> None:
    if not (mount.path / "npy/g/s.npy").exists():
        pytest.skip("v0 has no scalars here")
    before = values(mount.store)
    os.rename(mount.path / "npy/g/s.npy", mount.path / "npy/h/s2.npy")
    assert values(mount.store) == moved(before, "g/s", "h/s2")
    assert np.load(mount.path / "npy/h/s2.npy") == 2.5


def test_an_array_is_renamed_over_another(mount: Mounted) -> None:
    before = values(mount.store)
    os.replace(mount.path / "npy/g/a.npy", mount.path / "npy/h/keep.npy")
    kept = moved(before, "h/keep", "gone")
    kept = {key: value for key, value in kept.items() if "gone" not in key}
    assert values(mount.store) == moved(kept, "g/a", "h/keep")


def test_an_array_that_was_renamed_over_another_is_found_at_once(mount: Mounted) -> None:
    """The kernel knows both names before, and only requests attributes of the inode."""
    np.save(mount.path / "npy/h/keep.npy", np.zeros(3))
    with (mount.path / "chunks/g/a/0.0").open("rb"):
        os.replace(mount.path / "npy/g/a.npy", mount.path / "npy/h/keep.npy")
        assert os.stat(mount.path / "npy/h/keep.npy").st_size == 128 + ELEMENTS.nbytes
        np.testing.assert_array_equal(np.load(mount.path / "npy/h/keep.npy"), ELEMENTS)
        np.save(mount.path / "npy/h/keep.npy", ELEMENTS + 1)
    np.testing.assert_array_equal(np.load(mount.path / "npy/h/keep.npy"), ELEMENTS + 1)


def test_a_name_changes_its_case(mount: Mounted) -> None:
    before = values(mount.store)
    run("mv", mount.path / "npy/g/a.npy", mount.path / "npy/g/A.npy")
    run("mv", mount.path / "chunks/h", mount.path / "chunks/H")
    assert values(mount.store) == moved(moved(before, "g/a", "g/A"), "h", "H")


def test_open_files_go_with_their_node(mount: Mounted) -> None:
    with (
        open(mount.path / "npy/g/a.npy", "r+b", buffering=0) as file,
        open(mount.path / "npy/g/deep/b.npy", "rb", buffering=0) as reader,
        open(mount.path / "chunks/g/a/.zattrs", "r+", encoding="utf-8") as document,
    ):
        file.seek(-4, os.SEEK_END)
        file.write(np.float32(-1).tobytes())
        here = os.open(mount.path / "chunks/g/deep", os.O_RDONLY)
        os.rename(mount.path / "npy/g", mount.path / "npy/moved")
        document.write('{"name": "after"}')
        os.fsync(file.fileno())
        assert reader.read()[-4:] == ELEMENTS[-1:, -1:].tobytes()
        assert "b" in os.listdir(here)
        os.close(here)
        np.testing.assert_array_equal(np.load(mount.path / "npy/moved/a.npy")[-1, -1], -1)
    assert json.loads((mount.path / "chunks/moved/a/.zattrs").read_text()) == {"name": "after"}
    assert not (mount.path / "npy/g").exists()


@pytest.mark.parametrize("view", ["npy", "chunks", "zarr3"])
@pytest.mark.parametrize("renamed", ["g", "g/a"])
@pytest.mark.parametrize("written", ["before", "after"])
def test_a_chunk_that_is_open_in_raw_goes_with_its_array(mount: Mounted, written: str, renamed: str, view: str) -> None:
    """In the layouts of 2019 and 2022 it was stale: no folder of the node's name holds it."""
    chunk = next(path for path in mount.store.rglob("*") if path.is_file() and re.search(r"/g/a/.*0[./]0(\.blosc)?$", str(path)))
    data = chunk.read_bytes()
    changed = data[:-1] + bytes([data[-1] ^ 1])
    fd = os.open(mount.path / "raw" / chunk.relative_to(mount.store), os.O_RDWR)
    if written == "before":
        os.pwrite(fd, changed[-1:], len(data) - 1)
    suffix = ".npy" if view == "npy" and renamed == "g/a" else ""
    new = f"{renamed[:-1]}n"
    os.rename(mount.path / f"{view}/{renamed}{suffix}", mount.path / f"{view}/{new}{suffix}")
    if written == "after":
        os.pwrite(fd, changed[-1:], len(data) - 1)
    os.fsync(fd)
    assert os.pread(fd, len(data), 0) == changed
    os.close(fd)
    assert Path(str(chunk).replace(f"/{renamed}/", f"/{new}/")).read_bytes() == changed
    assert not chunk.exists()


@pytest.mark.logs("in case only")
def test_a_name_that_differs_in_case_alone_is_taken_where_names_are_unique(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with mounted(tmp_path / "store", "--new-dialect", "v3_2019") as mount:
        np.save(mount.path / "npy/foo.npy", ELEMENTS)
        for attempt in (
            lambda: np.save(mount.path / "npy/Foo.npy", ELEMENTS),
            lambda: (mount.path / "chunks/Foo").mkdir(),
            lambda: (mount.path / "zarr3/FOO").mkdir(),
        ):
            told = len(mount.errors())
            with pytest.raises(FileExistsError) as caught:
                attempt()
            assert caught.value.errno == errno.EEXIST
            assert len(mount.errors()) > told and "in case only" in mount.errors()[-1]["message"]


def test_what_only_the_store_knows_of_an_array_stays(tmp_path: Path) -> None:
    """An extension type with its fallback, an extension that may be ignored, and a fill value with a payload."""
    store = tmp_path / "store"
    (store / "meta/root").mkdir(parents=True)
    (store / "data/a").mkdir(parents=True)
    (store / "zarr.json").write_text(
        json.dumps(
            {
                "zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0",
                "metadata_encoding": "application/json",
                "extensions": [],
            }
        )
    )
    document = {
        "shape": [4],
        "data_type": {"extension": "http://example.org/x", "type": "http://example.org/x/t", "fallback": ">f4"},
        "chunk_grid": {"type": "regular", "chunk_shape": [2]},
        "chunk_memory_layout": "C",
        "compressor": None,
        "fill_value": None,
        "extensions": [{"extension": "http://example.org/y", "must_understand": False, "configuration": {"k": 1}}],
        "attributes": {},
    }
    (store / "meta/root/a.array").write_text(json.dumps(document))
    (store / "data/a/0").write_bytes(np.array([1, 2], ">f4").tobytes())
    before = values(store)
    with mounted(store) as mount:
        run("mv", mount.path / "npy/a.npy", mount.path / "npy/b.npy")
        assert np.load(mount.path / "npy/b.npy").tolist()[:2] == [1, 2]
    assert values(store) == moved(before, "a", "b")


@pytest.mark.parametrize("dialect", APART)
def test_chunks_that_wait_for_nothing_are_no_obstacle(tmp_path: Path, dialect: str) -> None:
    """Chunks without a document are at the target path."""
    store = tmp_path / "store"
    store.mkdir()
    with mounted(store, "--new-dialect", dialect) as mount:
        np.save(mount.path / "npy/a.npy", ELEMENTS)
    chunk = next(path for path in store.glob("data/**/*") if path.is_file())
    left = Path(str(chunk).replace("/a/", "/b/"))
    left.parent.mkdir(parents=True)
    left.write_bytes(b"of no array")
    with mounted(store) as mount:
        run("mv", mount.path / "npy/a.npy", mount.path / "npy/b.npy")
        assert np.load(mount.path / "npy/b.npy").tolist() == ELEMENTS.tolist()


@pytest.mark.parametrize("view", ["chunks", "npy"])
@pytest.mark.parametrize("how", ["renamed", "erased", "erased, chunks first"])
@pytest.mark.parametrize("dialect", APART)
def test_an_equal_array_that_raw_puts_in_the_place_of_an_open_one_is_another(
    tmp_path: Path, dialect: str, how: str, view: str
) -> None:
    """Documents and chunks are moved or removed one after the other, and no file is looked up in between."""
    store = tmp_path / "store"
    store.mkdir()
    with mounted(store, "--new-dialect", dialect, "--new-chunks", "2x3", ends_with=None) as mount:
        for name in "ab":
            np.save(mount.path / f"npy/{name}.npy", ELEMENTS)
        document = next(path.relative_to(store) for path in store.glob("meta/root/a.*"))
        chunks = next(path.relative_to(store) for path in store.glob("data/**/a"))
        places = [mount.path / "raw" / document, mount.path / "raw" / chunks]
        fd = os.open(mount.path / (f"{view}/a.npy" if view == "npy" else "chunks/a/0.0"), os.O_RDWR)
        os.pwrite(fd, np.float32(99).tobytes(), 128 if view == "npy" else 0)
        for place in reversed(places) if "first" in how else places:
            if how == "renamed":
                place.rename(place.with_name(place.name.replace("a", "c", 1)))
            elif place.is_dir():
                shutil.rmtree(place)
            else:
                place.unlink()
        for place in places:
            place.with_name(place.name.replace("a", "b", 1)).rename(place)
        with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
            os.close(fd)
        assert np.load(mount.path / "npy/a.npy").tolist() == ELEMENTS.tolist()
        mount.umount()


@pytest.mark.parametrize("dialect", APART)
def test_an_array_whose_chunks_were_erased_and_written_again_does_not_end_with_its_document(tmp_path: Path, dialect: str) -> None:
    """Editors remove a document before they write it again: what was open with changes became stale."""
    store = tmp_path / "store"
    store.mkdir()
    with mounted(store, "--new-dialect", dialect, "--new-chunks", "2x3") as mount:
        np.save(mount.path / "npy/a.npy", ELEMENTS)
        document = mount.path / "raw" / next(path.relative_to(store) for path in store.glob("meta/root/a.*"))
        fd = os.open(mount.path / "npy/a.npy", os.O_RDWR)
        shutil.rmtree(mount.path / "raw" / next(path.relative_to(store) for path in store.glob("data/**/a")))
        os.pwrite(fd, ELEMENTS.tobytes(), 128)
        os.fsync(fd)
        os.pwrite(fd, np.float32(99).tobytes(), 128)
        text = document.read_bytes()
        document.unlink()
        document.write_bytes(text)
        os.close(fd)
        assert np.load(mount.path / "npy/a.npy").tolist() == [[99, *ELEMENTS[0, 1:].tolist()], *ELEMENTS[1:].tolist()]
