"""The default chunk shape of an array, as zarr-python chooses it.

Source: h5py's ``guess_chunk``, which zarr-python adapted (``_guess_chunks``): halve one dimension after the other until a chunk is near a
target that grows with the array.
"""

from __future__ import annotations

import math

from zarrfs.model.chunk_grid import Shape

_BASE_NBYTES = 256 * 1024
_MIN_NBYTES = 128 * 1024
_MAX_NBYTES = 64 * 1024 * 1024


def guess_chunks(shape: Shape, itemsize: int) -> Shape:
    """Return a chunk shape for an array of ``shape`` whose elements have ``itemsize`` bytes; every length is at least 1."""
    chunks = [float(max(extent, 1)) for extent in shape]
    if not itemsize or not chunks:
        return tuple(int(length) for length in chunks)
    target = _BASE_NBYTES * 2 ** math.log10(math.prod(chunks) * itemsize / 2**20)
    target = min(max(target, _MIN_NBYTES), _MAX_NBYTES)
    axis = 0
    while (elements := math.prod(chunks)) > 1:
        nbytes = elements * itemsize
        if (nbytes < target or abs(nbytes - target) / target < 0.5) and nbytes < _MAX_NBYTES:
            break
        chunks[axis] = math.ceil(chunks[axis] / 2)
        axis = (axis + 1) % len(chunks)
    return tuple(int(length) for length in chunks)
