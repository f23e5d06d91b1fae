"""The order of the elements in a chunk, for layouts without a codec for it: "C", or "F", with the dimensions reversed.

Sources: v1 and v2 "order"; v3 protocol 2019 and core 2022 "chunk_memory_layout".
"""

from __future__ import annotations

from collections.abc import Sequence

from zarrfs.errors import NotRepresentable
from zarrfs.model.codec_spec import CodecSpec


def order_codecs(order: str, ndim: int) -> tuple[CodecSpec, ...]:
    """Return the codecs that represent ``order`` at the front of a chain, in the terms of the final v3."""
    return (CodecSpec("transpose", {"order": list(reversed(range(ndim)))}),) if order == "F" and ndim > 1 else ()


def split_order(codecs: Sequence[CodecSpec], ndim: int, layout: str) -> tuple[str, list[CodecSpec]]:
    """Return "C" or "F", and the chain without that order. Raises `NotRepresentable` for another order, naming the ``layout``."""
    rest = list(codecs)
    if not rest or rest[0].name != "transpose":
        return "C", rest
    axes = list(rest.pop(0).configuration.get("order", ()))
    if axes == list(range(ndim)):
        return "C", rest
    if axes != list(reversed(range(ndim))):
        raise NotRepresentable(f"{layout} has the dimension orders C and F, not {axes}")
    return "F", rest
