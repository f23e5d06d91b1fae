"""Copies into another order of dimensions equal those of NumPy, and stop when abandoned."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import trio
from trio.testing import trio_test

from zarrfs import threads
from zarrfs.memory import copying

SHAPES = [
    ((2,) * 22, "|u1"),
    ((2,) * 20, "<f8"),
    ((3, 5, 2, 7, 11, 2, 3, 13, 4, 2, 3), "<u2"),
    ((1, 1030, 1, 1027), "<f4"),
    ((300, 2, 1500), "|u1"),
    ((2**19, 3), "<i8"),
    ((700, 600), [("a", "|u1"), ("b", "<u2")]),
    ((33, 500), "|S100"),
    ((2**21,), "|u1"),
    ((1, 1), "|V2000000"),
    ((3, 1), "|S1500000"),
]


@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
@pytest.mark.parametrize("seed", range(4))
def test_elements_are_where_numpy_puts_them(shape: tuple[int, ...], dtype: object, seed: int) -> None:
    chance = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    source = chance.integers(0, 256, int(np.prod(shape)) * kind.itemsize, "u1").view(kind).reshape(shape)
    # Reversed, unchanged, and any two others.
    axes = [range(len(shape))[::-1], range(len(shape)), *(chance.permutation(len(shape)) for _ in range(2))][seed]
    source = source.transpose(axes)
    # A part of something larger, as a chunk is of a slab.
    out = np.zeros((*source.shape[:-1], source.shape[-1] + 3), kind)[..., : source.shape[-1]]
    copying.copy(out, source)
    assert out.tobytes() == source.tobytes()
    if kind.isnative and kind.names is None:
        swapped = np.zeros(source.shape, kind.newbyteorder(">"))
        copying.copy(swapped, source)
        np.testing.assert_array_equal(swapped.astype(kind).view(f"V{kind.itemsize}"), source.view(f"V{kind.itemsize}"))


def test_the_element_of_an_array_without_dimensions_is_copied() -> None:
    source, out = np.full((), "ab" * 150_000, ">U300000"), np.zeros((), "<U300000")
    copying.copy(out, source)
    assert out == source


@pytest.mark.parametrize("reverse", [False, True], ids=["in pieces", "in tiles"])
@trio_test
async def test_a_copy_that_was_given_up_goes_on_for_no_more_than_a_piece(reverse: bool) -> None:
    source = np.ones((2,) * 26, "|u1")
    out = np.zeros(source.shape, "|u1")
    begun, given_up = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        given_up.wait()
        copying.copy(out, source.T if reverse else source)

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(threads.cpu, source.nbytes, work)
            while not begun.is_set():
                await trio.lowlevel.checkpoint()
            scope.cancel()
            given_up.set()
    assert scope.cancelled_caught
    assert int(out.sum()) <= copying.PIECE_NBYTES < source.nbytes
