"""Implementation of ``zarrfs info``: nodes of a store, their metadata, and stored amounts.

Only documents and listings are read. The number of chunks in a shard is in its index, one read for each shard: only for an array given by
name. Every node is reported: if it is unreadable, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from zarrfs.errors import ZarrfsError
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.unforeseen import reason_of
from zarrfs.hierarchy.unknown_documents import unknown_documents
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, GroupNode, Node, UnsupportedNode
from zarrfs.model.metadata_values import fill, number, of_array, plain, shards
from zarrfs.options.config import MountConfig
from zarrfs.options.redact import public_url
from zarrfs.reports.by_identity import ByIdentity
from zarrfs.reports.info_amounts import Amounts, OnProgress, amounts_of
from zarrfs.reports.offline import below_array, hierarchy_of, open_offline, walk_tree
from zarrfs.transformers.remembering import RememberingStore
from zarrfs.transformers.without_apart import WithoutApart

OnNode = Callable[[dict[str, Any], Sequence[bool], bool], None]
"""Called with the description of a node (`describe`), and its place in the tree (`zarrfs.reports.offline.Placed`)."""


async def describe(
    config: MountConfig, path: str, *, indexes: bool = False, on_progress: OnProgress = lambda what, done, total: None
) -> dict[str, Any]:
    """Return the node at ``path`` of ``config.store`` and all below it: ``{"store": url, "nodes": [...]}``, JSON values only.

    Every node has ``path``, ``kind`` (array, group, unsupported), ``dialect``, ``hidden_dialects``: those of ignored documents at the
    same path (docs/design/010-layouts.md), and ``unknown_documents``: keys of documents of no known layout there. An array has
    ``nodes_below``: paths of nodes that no view shows. None (null) is unknown: stored amounts in a store that cannot list, chunks of
    shards whose indexes were not read, bytes of elements without a fixed size.

    ``indexes``: if the node itself is a sharded array, read the index of every shard. Raises `NoSuchEntry` if there is no such node, and
    any error of opening the store.
    """
    nodes: list[dict[str, Any]] = []
    await describe_each(config, path, lambda node, *_: nodes.append(node), indexes=indexes, on_progress=on_progress)
    return {"store": public_url(config.store), "nodes": nodes}


async def describe_each(
    config: MountConfig,
    path: str,
    on_node: OnNode,
    *,
    indexes: bool = False,
    on_progress: OnProgress = lambda what, done, total: None,
) -> None:
    """Call ``on_node`` for each node of `describe`, as they are read."""
    count = 0
    described = ByIdentity(_of_metadata)
    async with open_offline(config) as store:
        hierarchy = hierarchy_of(config, RememberingStore(WithoutApart(store)))
        async with aclosing(walk_tree(hierarchy, config, path)) as found:
            async for node, followed, has_nodes in found:
                try:
                    if not isinstance(node, UnsupportedNode):
                        # Read again, with its attributes.
                        node = await hierarchy.node(node.path) or node
                    description = await _described(hierarchy, node, described, on_progress, indexes=indexes and not count)
                except Exception as error:  # noqa: BLE001 - a failure of one node must not hide the others
                    description = _named(node, None, None) | {"kind": "unsupported", "reason": reason_of(node.path, error)}
                count += 1
                on_node(description, followed, has_nodes)
                on_progress("nodes", count, None)


def _of_metadata(metadata: ArrayMetadata) -> dict[str, Any]:
    return {
        **of_array(metadata),
        "chunks_equal": metadata.chunk_grid.is_uniform,
        "fill_text": fill(metadata)[1],
        "chunks_possible": number(math.prod(metadata.grid_shape)),
        "nbytes": None if metadata.data_type.is_variable else number(metadata.nbytes),
        "shards": shards(metadata),
        "shards_possible": number(math.prod(metadata.stored_grid_shape)) if metadata.shards else None,
    }


async def _described(
    hierarchy: Hierarchy,
    node: Node,
    described: ByIdentity[ArrayMetadata, dict[str, Any]],
    on_progress: OnProgress,
    *,
    indexes: bool,
) -> dict[str, Any]:
    hidden: list[str] | None
    unknown: list[str] | None
    description: dict[str, Any]
    try:
        hidden = await hierarchy.others_at(node.path)
        unknown = list(map(str, await unknown_documents(hierarchy, node)))
    except ZarrfsError:
        hidden = unknown = None
    match node:
        case ArrayNode():
            try:
                array = hierarchy.array_of(node)
            except Exception as error:  # noqa: BLE001 - what a node declares may be beyond any use
                kind, description = "unsupported", {"reason": reason_of(node.path, error)}
            else:
                amounts = await amounts_of(array, on_progress, indexes=indexes)
                kind, description = "array", _of_array(node, described(node.metadata), amounts)
                description["nodes_below"] = await _below(hierarchy, node)
        case GroupNode():
            kind, description = (
                "group",
                {
                    "explicit": node.explicit,
                    "quirks": list(node.quirks),
                    "attributes": plain(node.attributes),
                },
            )
        case UnsupportedNode():
            kind, description = "unsupported", {"reason": node.reason}
    return _named(node, hidden, unknown) | {"kind": kind, **description}


async def _below(hierarchy: Hierarchy, node: ArrayNode) -> list[str] | None:
    try:
        return list(map(str, await below_array(hierarchy, node)))
    except ZarrfsError:
        return None


def _named(node: Node, hidden: list[str] | None, unknown: list[str] | None) -> dict[str, Any]:
    return {
        "path": str(node.path),
        "kind": "",
        "dialect": node.dialect,
        "hidden_dialects": hidden,
        "unknown_documents": unknown,
    }


def _of_array(node: ArrayNode, metadata: Mapping[str, Any], amounts: Amounts) -> dict[str, Any]:
    nbytes = metadata["nbytes"]
    return {
        **metadata,
        "chunks_stored": amounts.chunks,
        "stored_nbytes": amounts.nbytes,
        "ratio": nbytes / amounts.nbytes if nbytes is not None and amounts.nbytes else None,
        "shards_stored": amounts.shards,
        "indexes": amounts.indexes,
        "error": amounts.error,
        "quirks": list(node.quirks),
        "attributes": plain(node.attributes),
    }
