"""The order of the elements in a chunk, as layouts say it that have no codec for it: "C", or "F", in which the dimensions are reversed.

Sources: v1 and v2 "order"; v3 protocol 2019 and core 2022 "chunk_memory_layout".
"""

from __future__ import annotations

from collections.abc import Sequence

from zarrfs.errors import NotRepresentable
from zarrfs.model.codec_spec import CodecSpec


def order_codecs(order: str, ndim: int) -> tuple[CodecSpec, ...]:
    """The codecs that stand for ``order`` at the front of a chain, in the final v3's words."""
    return (CodecSpec("transpose", {"order": list(reversed(range(ndim)))}),) if order == "F" and ndim > 1 else ()


def split_order(codecs: Sequence[CodecSpec], ndim: int, layout: str) -> tuple[str, list[CodecSpec]]:
    """ "C" or "F", and the chain without what says so. Raises `NotRepresentable` for another order, naming the ``layout``."""
    rest = list(codecs)
    if not rest or rest[0].name != "transpose":
        return "C", rest
    axes = list(rest.pop(0).configuration.get("order", ()))
    if axes == list(range(ndim)):
        return "C", rest
    if axes != list(reversed(range(ndim))):
        raise NotRepresentable(f"{layout} stores dimensions in order or reversed, not in the order {axes}")
    return "F", rest
