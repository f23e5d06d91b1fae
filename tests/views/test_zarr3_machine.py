"""Random edits of nodes and chunks through ``zarr3/``, compared with a plain model.

After each of them zarr-python reads the store, and the view as a store of its own, like the model.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.support.length import tries
from tests.support.node_model import FILL, ModelNode, parent_of, require
from tests.support.stores import contents
from tests.support.trees import every_file, read, tree_over, walk, write
from tests.support.zarr_python import everything, store_of_kind, written
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import EntryExists, ZarrfsError
from zarrfs.vfs.node import Directory

pytest.importorskip("zarr")

PATHS = st.sampled_from(["a", "b", "c", "a/a", "a/5", "b/c", "a/c/5", "c/0"])
ATTRIBUTES = st.dictionaries(st.sampled_from("xyz"), st.integers(0, 3) | st.just([None, "\u00e9"]), max_size=2)
ACTIONS = st.one_of(
    st.tuples(st.just("group"), PATHS, ATTRIBUTES),
    st.tuples(st.just("array"), PATHS, st.integers(1, 5), ATTRIBUTES, st.lists(st.integers(0, 2), max_size=3), st.integers(0, 3)),
    st.tuples(st.just("array"), PATHS, st.integers(1, 5), ATTRIBUTES, st.lists(st.integers(0, 2), max_size=3), st.integers(0, 3)),
    st.tuples(st.just("document"), PATHS, st.integers(1, 7), ATTRIBUTES),
    st.tuples(st.just("chunk"), PATHS, st.integers(0, 3), st.integers(0, 99)),
    st.tuples(st.just("no chunk"), PATHS, st.integers(0, 3)),
    st.tuples(st.just("rename"), PATHS, PATHS),
    st.tuples(st.just("rm -r"), PATHS, st.booleans()),
)


class Model:
    """Expected state of the view. A `ValueError` for an impossible action leaves it unchanged."""

    def __init__(self) -> None:
        self.nodes: dict[str, ModelNode] = {"": ModelNode()}

    def apply(self, action: tuple[Any, ...]) -> None:
        name, path, *rest = action
        node = self.nodes.get(path)
        match name:
            case "group":
                require(node is None and self.is_group(parent_of(path)))
                self.nodes[path] = ModelNode(rest[0])
            case "array":
                require(node is None and self.is_group(parent_of(path)))
                shape, attributes, chunks, _ = rest
                made = ModelNode(attributes, shape)
                made.chunks = {index: [index, index] for index in chunks if 2 * index < shape}
                self.nodes[path] = made
            case "document":
                require(node is not None)
                node.attributes = rest[1]
                if node.shape is not None:
                    node.shape = rest[0]
                    node.chunks = {index: values for index, values in node.chunks.items() if 2 * index < node.shape}
            case "chunk":
                require(node is not None and node.shape is not None and 2 * rest[0] < node.shape)
                node.chunks[rest[0]] = [rest[1], rest[1] + 1]
            case "no chunk":
                require(node is not None and rest[0] in node.chunks)
                del node.chunks[rest[0]]
            case "rename":
                new = rest[0]
                require(node is not None and self.is_group(parent_of(new)) and new not in self.nodes)
                require(not new.startswith(path + "/"))
                for each in [path, *self.below(path)]:
                    self.nodes[new + each[len(path) :]] = self.nodes.pop(each)
            case "rm -r":
                require(node is not None)
                for each in [path, *self.below(path)]:
                    del self.nodes[each]

    def is_group(self, path: str) -> bool:
        return path in self.nodes and self.nodes[path].shape is None

    def below(self, path: str) -> list[str]:
        return [each for each in self.nodes if each.startswith(path + "/")]


def document(attributes: dict[str, Any], shape: int | None) -> dict[str, Any]:
    if shape is None:
        return {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [shape],
        "data_type": "int16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": FILL,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "gzip", "configuration": {"level": 1}}],
        "attributes": attributes,
    }


def encoded(*values: int) -> bytes:
    return gzip.compress(np.array(values, "<i2").tobytes())


class View:
    """The view, used as by programs."""

    def __init__(self, tree: MountTree) -> None:
        self.tree = tree

    async def folder(self, path: str) -> Directory:
        folder = await walk(self.tree, f"zarr3/{path}")
        if not isinstance(folder, Directory):
            raise ZarrfsError("a file")
        return folder

    async def apply(self, action: tuple[Any, ...]) -> None:
        name, path, *rest = action
        parent, _, last = path.rpartition("/")
        match name:
            case "group":
                await (await self.folder(parent)).mkdir(last)
                await self.put(path, document(rest[0], None))
            case "array":
                shape, attributes, chunks, when = rest
                await (await self.folder(parent)).mkdir(last)
                # The document comes before, between or after the chunks, of which it permits some only.
                chunks = [index for index in chunks if 2 * index < shape]
                for index in chunks[:when]:
                    await self.put_chunk(path, index, index, index)
                await self.put(path, document(attributes, shape))
                for index in chunks[when:]:
                    await self.put_chunk(path, index, index, index)
            case "document":
                now = json.loads(await read(self.tree, f"zarr3/{path}/zarr.json"))
                shape = {"shape": [rest[0]]} if now["node_type"] == "array" else {}
                await self.put(path, now | shape | {"attributes": rest[1]})
            case "chunk":
                await self.put_chunk(path, rest[0], rest[1], rest[1] + 1)
            case "no chunk":
                await (await self.folder(f"{path}/c")).unlink(str(rest[0]))
            case "rename":
                if rest[0] == path:
                    raise ZarrfsError("the same")
                target = await self.folder(parent_of(rest[0]))
                await (await self.folder(parent)).rename(last, target, rest[0].rpartition("/")[2], replace=False)
            case "rm -r":
                await self.remove(path, backwards=rest[0])

    async def put(self, path: str, written: dict[str, Any]) -> None:
        await write(self.tree, f"zarr3/{path}/zarr.json", json.dumps(written).encode())

    async def put_chunk(self, path: str, index: int, *values: int) -> None:
        with contextlib.suppress(EntryExists):
            await (await self.folder(path)).mkdir("c")
        await write(self.tree, f"zarr3/{path}/c/{index}", encoded(*values))

    async def remove(self, path: str, *, backwards: bool) -> None:
        folder = await self.folder(path)
        for entry, is_directory, *_ in sorted([each async for each in folder.entries()], reverse=backwards):
            if is_directory:
                await self.remove(f"{path}/{entry}", backwards=backwards)
            else:
                await folder.unlink(entry)
        await (await self.folder(parent_of(path))).rmdir(path.rpartition("/")[2])


@pytest.mark.logs("write failed, data lost")
@pytest.mark.parametrize(
    ("dialect", "kind", "consolidated"),
    [(2, "memory", False), (3, "memory", True), (2, "folder", True), (3, "folder", False)],
)
@tries(40)
@given(actions=st.lists(ACTIONS, min_size=3, max_size=14))
def test_any_edits(dialect: int, kind: str, consolidated: bool, actions: list[tuple[Any, ...]]) -> None:
    async def main(folder: Path) -> None:
        model = Model()
        values = written(dialect, lambda root: None, consolidated=consolidated)
        async with store_of_kind(kind, folder, values) as store, tree_over(store, resize_erases=True) as tree:
            view = View(tree)
            described = {"": ModelNode().described()}
            for action in actions:
                if any(node.shape is not None and action[1].startswith(f"{path}/") for path, node in model.nodes.items()):
                    # A folder for chunk keys of an array.
                    continue
                try:
                    model.apply(action)
                except ValueError:
                    if action[0] in ("group", "array", "chunk", "document"):
                        # The mount may keep more than the model represents: folders and files that are not stored yet.
                        continue
                    with pytest.raises(ZarrfsError):
                        await view.apply(action)
                else:
                    await view.apply(action)
                described = {path: node.described() for path, node in model.nodes.items()}
                assert everything(await contents(store), use_consolidated=False) == described, action
            shown = {path.removeprefix("zarr3/"): await read(tree, path) async for path in every_file(tree, "zarr3")}
            assert everything(shown) == described
            assert ("consolidated_metadata" in json.loads(shown["zarr.json"])) == consolidated
            chunks = {f"{path}/c/{index}" for path, node in model.nodes.items() for index in node.chunks}
            assert {path for path in shown if not path.endswith("zarr.json")} == chunks

    with tempfile.TemporaryDirectory() as folder:
        trio.run(main, Path(folder))
