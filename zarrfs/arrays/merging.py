"""Merging of changed elements of a chunk into the stored value at publish time (docs/design/020-two-writers.md).

A writer of some elements does not know the others at that time. It passes a `Merge` to `ChunkStore.modify`, which applies it to the
stored value, and again if that was replaced meanwhile.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import EllipsisType

import numpy as np

from zarrfs import threads
from zarrfs.arrays.array import Array
from zarrfs.arrays.booleans import invalid_boolean
from zarrfs.arrays.chunk_store import Lasting, Merge
from zarrfs.arrays.failed_chunk import FailedChunk
from zarrfs.arrays.filling import fill, is_filled, part
from zarrfs.arrays.padding import is_padding
from zarrfs.buffers import Buffer, Mask, NDArray
from zarrfs.errors import ChunkDecodeError, ChunkEncodeError
from zarrfs.memory import spill
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.metadata import ArrayNode

# A chunk up to this size is read, changed and set under its lock: two quick sets may have the same file time. The lock excludes other
# mounts from the whole folder, so larger chunks are encoded before it is taken.
_QUICK_NBYTES = 1 << 20


class _Elements(Merge):
    """Common state of both kinds: the array, and the coordinates of the chunk."""

    def __init__(self, array: Array, coords: Coords) -> None:
        self._array = array
        self._coords = coords
        self.limit = array.encoded_limit(coords)
        self.is_slow = array.metadata.chunk_nbytes(coords) > _QUICK_NBYTES

    def working(self) -> AbstractAsyncContextManager[None]:
        return self._array.merging([self._coords])

    async def onto(self, stored: Buffer | None) -> Buffer | None:
        if stored is not None and len(stored) > self.limit:
            raise self._array.oversized(self._coords, self.limit)
        result, counted = await threads.cpu(self._array.metadata.chunk_nbytes(self._coords), self._onto, stored)
        spill.refuse_lost(stored, *self._sources(), key=self._array.chunks.keys(self._coords)[0])
        self._array.count(decoded=counted, encoded=result is not None and result is not stored)
        return result

    @abc.abstractmethod
    def _onto(self, stored: Buffer | None) -> tuple[Buffer | None, int]:
        """Return the result, and how many chunks were decoded for it. Runs in a thread."""

    @abc.abstractmethod
    def _sources(self) -> tuple[object, ...]:
        """Return what is merged: buffers and arrays, which may be in files."""

    def _before(self, stored: Buffer | None) -> NDArray:
        """Return the chunk at its full shape, writable."""
        metadata = self._array.metadata
        elements = spill.array(metadata.chunk_grid.chunk_shape(self._coords), metadata.data_type.dtype)
        if stored is None:
            fill(metadata, elements)
        else:
            try:
                self._array.chain.decode_into(stored, elements.shape, elements)
            except ChunkDecodeError as error:
                raise self._array.naming(error, "decoding", self._coords) from error
        return elements

    def _inside(self, elements: NDArray) -> NDArray:
        """Return the part of a chunk within the array."""
        return part(elements, self._array.inside(self._coords))


class ElementMerge(_Elements):
    """A merge of those ``elements`` (a chunk at its full shape) that the mask ``changed()`` selects.

    ``changed`` runs in a thread; its mask has the shape of the part within the array. ``sparse``: a chunk that becomes fill value is
    erased, and one that does not change is not set. ``failed``: an earlier attempt to store some of them, and the mask of the others, as
    ``changed`` (None: all of them); where others have changed these elements since, theirs stay. ``base``: the chunk that it was applied
    to last.
    """

    base: Buffer | EllipsisType | None = ...

    def __init__(
        self,
        array: Array,
        coords: Coords,
        elements: NDArray,
        changed: Callable[[], Mask],
        *,
        sparse: bool,
        failed: tuple[FailedChunk, Callable[[], Mask | None]] | None = None,
    ) -> None:
        super().__init__(array, coords)
        self._elements = elements
        self._changed = changed
        self._sparse = sparse
        self._failed = failed
        self._mask: Mask | None = None

    async def onto(self, stored: Buffer | None) -> Buffer | None:
        self.base = stored
        return await super().onto(stored)

    def lasting(self, result: Buffer | None) -> LastingMerge:
        assert self._mask is not None
        # Of the whole chunk: a resize of the array may change the part within it.
        mask = spill.array(self._elements.shape, np.dtype(bool))
        mask[...] = False
        self._inside(mask)[...] = self._mask
        return LastingMerge(self._array, self._coords, result, np.packbits(mask).data, sparse=self._sparse)

    def _sources(self) -> tuple[object, ...]:
        return self._elements, self._mask

    def _onto(self, stored: Buffer | None) -> tuple[Buffer | None, int]:
        mask = self._mask = self._still_changed(stored)
        # As at the first attempt, a chunk that is replaced whole need not be readable.
        is_whole = self._failed is not None and bool(mask.all())
        into, theirs = self._before(None if is_whole else stored), self._inside(self._elements)
        inside = self._inside(into)
        if (why := invalid_boolean(theirs, mask)) is not None:
            raise self._array.naming(ChunkEncodeError(why), "encoding", self._coords)
        decoded = 0 if stored is None else 1
        # Without a fill value a missing chunk has no elements that these could equal: what it reads as is a default.
        is_defined = stored is not None or self._array.metadata.fill_value is not None
        if self._sparse and not is_whole and (is_defined or not mask.any()) and same_bits(inside, theirs, mask):
            return stored, decoded
        put(inside, theirs, mask)
        if self._sparse and is_filled(self._array.metadata, inside):
            return None, decoded
        return self._array.encode_now(self._coords, into), decoded

    def _still_changed(self, stored: Buffer | None) -> Mask:
        """Return the mask of the changed elements, without those that others have changed since they could not be stored."""
        mask = self._changed()
        if self._failed is None or self._failed[0].is_stored(stored):
            return mask
        failed, written_since = self._failed
        try:
            by_others = differing(self._inside(self._before(stored)), self._inside(self._before(failed.base)))
        except ChunkDecodeError:
            return mask
        if (since := written_since()) is not None:
            by_others &= ~since
        return np.greater(mask, by_others)


class LastingMerge(_Elements, Lasting):
    """The result ``result`` of an `ElementMerge` (an encoded chunk; None: all fill value) and a mask ``packed`` of its changed elements.

    For a later store of the chunk, when its stored value may differ from the one that the merge was applied to.
    """

    def __init__(self, array: Array, coords: Coords, result: Buffer | None, packed: Buffer, *, sparse: bool) -> None:
        super().__init__(array, coords)
        self._result = result
        self._sparse = sparse
        self.packed = packed

    def lasting(self, result: Buffer | None) -> LastingMerge:
        return LastingMerge(self._array, self._coords, result, self.packed, sparse=self._sparse)

    def kept(self, result: Buffer | None, packed: Buffer) -> LastingMerge:
        """Return the same merge, held in other memory."""
        return LastingMerge(self._array, self._coords, result, packed, sparse=self._sparse)

    def after(self, earlier: Lasting) -> LastingMerge:
        packed = np.frombuffer(earlier.packed, np.uint8) | np.frombuffer(self.packed, np.uint8)
        spill.refuse_lost(earlier.packed)
        return LastingMerge(self._array, self._coords, self._result, packed.data, sparse=self._sparse)

    def resized(self, array: ArrayNode) -> None:
        self._array = self._array.resized(array)

    def _sources(self) -> tuple[object, ...]:
        return self._result, self.packed

    def _onto(self, stored: Buffer | None) -> tuple[Buffer | None, int]:
        into, result = self._before(stored), self._before(self._result)
        is_padded = self._is_padded(into)
        bits = np.unpackbits(np.frombuffer(self.packed, np.uint8), count=into.size)
        put(into, result, bits.view(np.bool_).reshape(into.shape))
        decoded = (stored is not None) + (self._result is not None)
        if self._sparse and is_filled(self._array.metadata, into):
            return None, decoded
        return self._array.encode_now(self._coords, into, whole=not is_padded), decoded

    def _is_padded(self, elements: NDArray) -> bool:
        """Return True if the elements beyond the edge are padding that depends on those inside, and must be recomputed."""
        array, inside = self._array, self._array.inside(self._coords)
        if not array.chain.after_another or all(edge.stop == n for edge, n in zip(inside, elements.shape, strict=True)):
            return False
        return is_padding(array.chain, elements, self._before(None), inside)


def put(into: NDArray, elements: NDArray, mask: Mask) -> None:
    """Copy the ``elements`` that ``mask`` selects into ``into``, bit for bit."""
    np.copyto(as_bits(into), as_bits(elements), where=mask)


def same_bits(one: NDArray, other: NDArray, mask: Mask) -> bool:
    """Return True if the elements that ``mask`` selects are equal bit for bit: NaN equals itself, and -0.0 is not 0.0."""
    a, b = (spill.contiguous(as_bits(each)[mask]).reshape(-1).view(np.uint8) for each in (one, other))
    return bool(np.array_equal(a, b))


def differing(one: NDArray, other: NDArray) -> Mask:
    """Return the mask of the elements that are not equal bit for bit."""
    size = one.dtype.itemsize
    if size in (0, 1, 2, 4, 8):
        return np.not_equal(as_bits(one), as_bits(other))
    a, b = (spill.contiguous(each).reshape(-1).view(np.uint8).reshape(*each.shape, size) for each in (one, other))
    found: Mask = np.logical_or.reduce(a != b, axis=-1)
    return found


def as_bits(elements: NDArray) -> NDArray:
    """Return the same elements as untyped bits: copies then keep the padding of structs and the payload of NaN."""
    size = elements.dtype.itemsize
    return elements.view(f"u{size}" if size in (1, 2, 4, 8) else f"V{size}") if size else elements


def of_elements(changed: Mask, begin: int, itemsize: int) -> Mask:
    """Return the mask of elements with a ``changed`` byte; the first flag belongs to byte ``begin`` of the first element."""
    count = -(-(begin + len(changed)) // itemsize)
    of_bytes = np.zeros(count * itemsize, bool)
    of_bytes[begin : begin + len(changed)] = changed
    selected: Mask
    if itemsize in (1, 2, 4, 8):
        selected = of_bytes.view(f"u{itemsize}") != 0
    else:
        selected = np.logical_or.reduce(of_bytes.reshape(count, itemsize), axis=1)
    return selected


async def store_merged(array: Array, coords: Coords, merge: Merge) -> None:
    """Store changed elements of one chunk."""
    async with array.chunks.holding(), merge.working():
        await array.chunks.modify({coords: merge})
