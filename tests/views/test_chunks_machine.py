"""Random edits of nodes through ``chunks/``, compared with a plain model.

After each of them zarr-python reads the store, with and without its consolidated copy, and the view shows the same.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.support.length import tries
from tests.support.node_model import FILL, ModelNode, parent_of, require
from tests.support.small_stores import array_document
from tests.support.stores import contents
from tests.support.trees import names, read, tree_over, walk, write
from tests.support.zarr_python import everything, store_of_kind, written
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import ZarrfsError
from zarrfs.stores.base import Store
from zarrfs.vfs.node import Directory

pytest.importorskip("zarr")

PATHS = st.sampled_from(["a", "b", "a/a", "a/b", "b/a", "a/a/b"])
ATTRIBUTES = st.dictionaries(st.sampled_from("xyz"), st.integers(0, 3) | st.just([None, "\u00e9"]), max_size=2)
ACTIONS = st.one_of(
    st.tuples(st.just("mkdir"), PATHS),
    st.tuples(st.just("mkdir"), PATHS),
    st.tuples(st.just("array"), PATHS, st.integers(0, 5)),
    st.tuples(st.just("array"), PATHS, st.integers(0, 5)),
    st.tuples(st.just("shape"), PATHS, st.integers(0, 7)),
    st.tuples(st.just("attributes"), PATHS, ATTRIBUTES),
    st.tuples(st.just("no attributes"), PATHS),
    st.tuples(st.just("chunk"), PATHS, st.integers(0, 3), st.integers(0, 99)),
    st.tuples(st.just("no chunk"), PATHS, st.integers(0, 3)),
    st.tuples(st.just("rename"), PATHS, PATHS),
    st.tuples(st.just("rm -r"), PATHS, st.booleans()),
    st.tuples(st.just("rmdir"), PATHS),
)


@dataclass
class Node(ModelNode):
    """``waiting``: files with names of chunks that the array does not have (yet), which exist in the mount only."""

    waiting: dict[int, list[int]] = field(default_factory=dict)


class Model:
    """Expected state of the view. A `ValueError` for an impossible action leaves it unchanged."""

    def __init__(self, dialect: int) -> None:
        self.nodes: dict[str, Node] = {"": Node()}
        self._dialect = dialect

    def described(self) -> dict[str, tuple[Any, ...]]:
        """Return the nodes that zarr-python reads; in final v3, with the fill value of a ``.zarray`` as the attribute ``_FillValue``."""
        found = {path: node.described() for path, node in self.nodes.items()}
        if self._dialect == 3:
            found |= {
                path: ("array", {**attributes, "_FillValue": FILL}, *more)
                for path, (kind, attributes, *more) in found.items()
                if kind == "array"
            }
        return found

    def apply(self, action: tuple[Any, ...]) -> None:
        name, path, *rest = action
        node = self.nodes.get(path)
        match name:
            case "mkdir":
                require(node is None and self.is_group(parent_of(path)))
                self.nodes[path] = Node()
            case "array":
                require(node is not None and not self.below(path))
                self.resize(node, rest[0])
            case "shape":
                require(node is not None and node.shape is not None)
                self.resize(node, rest[0])
            case "attributes":
                require(node is not None)
                node.attributes = rest[0]
            case "no attributes":
                require(node is not None and bool(node.attributes))
                node.attributes = {}
            case "chunk":
                require(node is not None)
                require(node.shape is None or 2 * rest[0] < node.shape or rest[0] in node.waiting)
                node.waiting[rest[0]] = [rest[1], rest[1] + 1]
                self.store_chunks(node)
            case "no chunk":
                require(node is not None and rest[0] in {**node.chunks, **node.waiting})
                (node.chunks if rest[0] in node.chunks else node.waiting).pop(rest[0])
            case "rename":
                self.rename(path, rest[0])
            case "rm -r":
                require(node is not None)
                for each in [path, *self.below(path)]:
                    del self.nodes[each]
            case "rmdir":
                require(node is not None and self.is_empty(path))
                del self.nodes[path]

    def rename(self, path: str, new: str) -> None:
        require(path in self.nodes and self.is_group(parent_of(new)))
        if path == new:
            return
        require(not new.startswith(path + "/"))
        require(new not in self.nodes or self.is_empty(new))
        for each in [path, *self.below(path)]:
            self.nodes[new + each[len(path) :]] = self.nodes.pop(each)

    def resize(self, node: Node, shape: int) -> None:
        node.shape = shape
        node.chunks = {index: values for index, values in node.chunks.items() if 2 * index < shape}
        self.store_chunks(node)

    def store_chunks(self, node: Node) -> None:
        for index in [index for index in node.waiting if node.shape is not None and 2 * index < node.shape]:
            values = enumerate(node.waiting.pop(index))
            node.chunks[index] = [value if 2 * index + n < (node.shape or 0) else FILL for n, value in values]

    def is_empty(self, path: str) -> bool:
        node = self.nodes[path]
        return node.shape is None and not node.attributes and not node.waiting and not self.below(path)

    def is_group(self, path: str) -> bool:
        return path in self.nodes and self.nodes[path].shape is None

    def below(self, path: str) -> list[str]:
        return [each for each in self.nodes if each.startswith(path + "/")]


async def apply(tree: MountTree, action: tuple[Any, ...]) -> None:
    """Do the same through the view."""
    name, path, *rest = action
    here = f"chunks/{path}"
    folder = await walk(tree, f"chunks/{parent_of(path)}")
    assert isinstance(folder, Directory)
    last = path.rpartition("/")[2]
    match name:
        case "mkdir":
            await folder.mkdir(last)
        case "array":
            await write(tree, f"{here}/.zarray", array_document((rest[0],), (2,), "<i2", fill_value=FILL))
        case "shape":
            document = json.loads(await read(tree, f"{here}/.zarray"))
            await write(tree, f"{here}/.zarray", json.dumps(document | {"shape": [rest[0]]}).encode())
        case "attributes":
            await write(tree, f"{here}/.zattrs", json.dumps(rest[0]).encode())
        case "no attributes":
            if json.loads(await read(tree, f"{here}/.zattrs")) in ({}, {"_FillValue": FILL}):
                raise ZarrfsError("an empty document may be shown")
            await unlink(tree, here, ".zattrs")
        case "chunk":
            await write(tree, f"{here}/{rest[0]}", np.array([rest[1], rest[1] + 1], "<i2").tobytes())
        case "no chunk":
            await unlink(tree, here, str(rest[0]))
        case "rename":
            target = await walk(tree, f"chunks/{parent_of(rest[0])}")
            if not isinstance(target, Directory):
                raise ZarrfsError("a file")
            if rest[0] != path:
                await without_empty_attributes(tree, f"chunks/{rest[0]}")
            await folder.rename(last, target, rest[0].rpartition("/")[2])
        case "rm -r":
            await remove_tree(tree, folder, last, backwards=rest[0])
        case "rmdir":
            await without_empty_attributes(tree, here)
            await folder.rmdir(last)


async def without_empty_attributes(tree: MountTree, path: str) -> None:
    """Remove a ``.zattrs`` that was written without attributes: the model does not represent it."""
    with contextlib.suppress(ZarrfsError):
        if json.loads(await read(tree, f"{path}/.zattrs")) == {}:
            await unlink(tree, path, ".zattrs")


async def unlink(tree: MountTree, path: str, name: str) -> None:
    folder = await walk(tree, path)
    assert isinstance(folder, Directory)
    await folder.unlink(name)


async def remove_tree(tree: MountTree, parent: Directory, name: str, *, backwards: bool) -> None:
    folder = await parent.lookup(name)
    assert isinstance(folder, Directory)
    for entry, is_directory, *_ in sorted([each async for each in folder.entries()], reverse=backwards):
        if is_directory:
            await remove_tree(tree, folder, entry, backwards=backwards)
        else:
            await folder.unlink(entry)
    await parent.rmdir(name)


@pytest.mark.logs("write failed, data lost")
@pytest.mark.parametrize(
    ("dialect", "kind", "consolidated"),
    [(2, "memory", False), (3, "memory", False), (2, "folder", True), (3, "folder", True)],
)
@tries(30)
@given(actions=st.lists(ACTIONS, min_size=3, max_size=14), syncs=st.booleans())
def test_any_edits(dialect: int, kind: str, consolidated: bool, actions: list[tuple[Any, ...]], syncs: bool) -> None:
    """``syncs``: new groups are stored after each edit, else at the end."""

    async def main(folder: Path) -> None:
        model = Model(dialect)
        values = written(dialect, lambda root: None, consolidated=consolidated)
        async with store_of_kind(kind, folder, values) as store, tree_over(store, resize_erases=True) as tree:
            for action in actions:
                try:
                    model.apply(action)
                    expected = True
                except ValueError:
                    expected = False
                try:
                    await apply(tree, action)
                    done = True
                except ZarrfsError:
                    done = False
                assert done == expected, action
                if syncs:
                    await (await view(tree)).sync()
                    await stored_as(store, model)
                await shown_as(tree, model, consolidated and syncs)
            assert await tree.publish_all() == []
            await stored_as(store, model)

    with tempfile.TemporaryDirectory() as folder:
        trio.run(main, Path(folder))


async def view(tree: MountTree) -> Directory:
    folder = await walk(tree, "chunks")
    assert isinstance(folder, Directory)
    return folder


async def stored_as(store: Store, model: Model) -> None:
    now, described = await contents(store), model.described()
    assert everything(now, use_consolidated=False) == described
    assert everything(now) == described


async def shown_as(tree: MountTree, model: Model, consolidated: bool) -> None:
    documents = {}
    for path, node in model.nodes.items():
        listed = await names(tree, f"chunks/{path}")
        documents |= {
            place: json.loads(await read(tree, f"chunks/{place}"))
            for name in listed & {".zattrs", ".zgroup", ".zarray"}
            if (place := f"{path}/{name}".lstrip("/"))
        }
        below = {each.rpartition("/")[2] for each in model.nodes if each and parent_of(each) == path}
        chunks = {str(index) for index in {**node.chunks, **node.waiting}}
        copy = {".zmetadata"} if not path else set()
        # A group without arrays may be new, and have no document yet.
        arrays = [
            each for each, inner in model.nodes.items() if inner.shape is not None and f"{each}/".startswith(f"{path}/".lstrip("/"))
        ]
        optional = {".zattrs", *(copy if not consolidated else ()), *(() if arrays else (".zgroup",))}
        document = ".zgroup" if node.shape is None else ".zarray"
        assert listed - optional == ({document} | below | chunks | copy) - optional
    if consolidated:
        assert json.loads(await read(tree, "chunks/.zmetadata")) == {"metadata": documents, "zarr_consolidated_format": 1}
