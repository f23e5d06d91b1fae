"""Waiting entries of a new folder: files with the names of chunks, until the array's document is written, and folders.

A waiting folder becomes a part of chunk keys, or a group.
"""

from __future__ import annotations

import time
from contextlib import nullcontext, suppress

from zarrfs import durability
from zarrfs.errors import ContentInvalid, EntryExists, StoreError, ZarrfsError
from zarrfs.hierarchy.live_array import OpenArray
from zarrfs.keys import NodePath
from zarrfs.views.nodes.view_format import NodeContent, ViewFormat


async def chunks_from_undecided(view_format: ViewFormat, path: NodePath) -> None:
    """Turn the files with names of chunks of the array at ``path``, written in this view before its document, into these chunks.

    Those that a program is still writing are stored by their own close(2) (`become_chunk_if_possible`). Raises `ContentInvalid` for files
    that do not fit, and the error of the store for others; they continue to wait.
    """
    context = view_format.context
    open_array = await context.hierarchy.array(path)
    if open_array is None or view_format.reason_against(open_array.array.node) is not None:
        return
    keys, ndim = view_format.keys(open_array.array.node), open_array.array.metadata.ndim
    refused: list[ZarrfsError] = []
    waiting = view_format.state.undecided_below(path)
    for each in waiting:
        # The store may have these folders only now, with times of their own.
        context.times.rebase(view_format.ident(each, ""))
    for folder in (path, *waiting):
        inside = folder.prefix[len(path.prefix) :]
        for name, *_ in list(context.temporaries.entries(view_format.ident(folder, ""))):
            ident = view_format.ident(folder, name)
            # A file that is being renamed is what its new name says: perhaps this very document.
            if context.staging.is_moving(ident) or (
                keys.decode(inside + name, ndim) is None and not view_format.looks_like_chunk(inside + name)
            ):
                continue
            try:
                await _become_chunk(view_format, ident, open_array, inside + name)
            except ZarrfsError as error:
                refused.append(error)
    if refused:
        # A full disk is not the fault of the content.
        first = next((each for each in refused if isinstance(each, StoreError)), None)
        kind, reason = (type(first), first) if first is not None else (ContentInvalid, refused[0])
        raise kind(f"{path} was created, but some of the waiting chunks were refused: {reason}", key=path)


async def node_from_undecided(view_format: ViewFormat, path: NodePath) -> None:
    """Turn the folder at ``path``, now that of a node, into a group if it waited; folders in it continue to wait."""
    if view_format.state.is_undecided(path):
        await groups_from_undecided(view_format, path.parent)


async def groups_from_undecided(view_format: ViewFormat, path: NodePath) -> None:
    """Turn the folders waiting in ``path``, now that of a group, into groups."""
    await node_from_undecided(view_format, path)
    view_format.state.holds_nodes(path)
    for each in view_format.state.undecided_in(path):
        # Another task may have created the same group, or an array.
        with suppress(EntryExists):
            await make_group(view_format, each)
        view_format.state.decided(each)


async def make_group(view_format: ViewFormat, path: NodePath) -> None:
    """Run mkdir(2) of a group."""
    await view_format.context.unstored.create(path)
    view_format.state.folder_created(path)
    view_format.context.times.touch(view_format.ident(path, ""), time.time_ns())


async def become_chunk_if_possible(view_format: ViewFormat, path: NodePath, name: str) -> None:
    """Turn the file ``name`` in the folder at ``path``, whose bytes are complete, into a chunk, if an array has it by now (`Become`).

    Its document may have been written while the file was: then the result is that of the file's own close(2). Raises `ContentInvalid`
    if the array has no such chunk, or other ones, and the errors of the store.
    """
    hierarchy = view_format.context.hierarchy
    array = await view_format.array_above(path)
    open_array = await hierarchy.array(array.path if array is not None else path)
    if open_array is None:
        return
    chunk = _chunk_of(view_format, open_array, path.prefix[len(open_array.array.node.path.prefix) :] + name)
    await _store_waiting(view_format, chunk)


async def _become_chunk(view_format: ViewFormat, ident: str, open_array: OpenArray, key: str) -> None:
    staging = view_format.context.staging
    # An open meanwhile would be one of the waiting file, and bring it back with its first change.
    with staging.moving(ident):
        staged = staging.get(ident)
        async with staged.lock if staged is not None else nullcontext():
            if staged is not None and await staged.is_left_to_writer():
                return
            try:
                await _store_waiting(view_format, _chunk_of(view_format, open_array, key))
            except ZarrfsError:
                if staged is None or not staged.writers:
                    raise
                # Each program of a shell's redirection closes its descriptor: the rest is still to come.
                await staged.publish_again()


def _chunk_of(view_format: ViewFormat, open_array: OpenArray, key: str) -> NodeContent:
    """Return the chunk called ``key`` in the folder of the array. Raises `ContentInvalid` if there is none."""
    array = open_array.array
    coords = view_format.keys(array.node).decode(key, array.metadata.ndim)
    if coords is None or not array.has(coords):
        path, grid_shape = array.node.path, array.metadata.grid_shape
        raise ContentInvalid(f"{key!r} is not a chunk of {path}: grid shape {grid_shape}", key=path)
    return view_format.chunk(open_array, coords)


async def _store_waiting(view_format: ViewFormat, chunk: NodeContent) -> None:
    """Store a waiting file as ``chunk``. The caller holds its lock."""
    context, state = view_format.context, view_format.state
    known = context.temporaries.find(chunk.ident)
    if known is None:
        return
    snapshot = await context.temporaries.content(chunk.ident).snapshot()
    assert snapshot is not None
    state.became_chunks.add(chunk.ident)
    try:
        with durability.demanded(known.synced):
            await chunk.publish(await snapshot.read(0, snapshot.attributes.size))
        if known.mtime_was_set:
            await chunk.set_mtime(known.mtime_ns)
        if known.synced:
            # Its fsync was answered when there was no array to store it in.
            with durability.demanded():
                await chunk.sync()
    finally:
        state.became_chunks.discard(chunk.ident)
        await snapshot.aclose()
    context.temporaries.remove(chunk.ident)
    context.staging.rekey(chunk.ident, chunk)
