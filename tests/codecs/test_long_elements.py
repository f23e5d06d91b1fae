"""Elements of variable size that are long, or one and the same many times: encoded piece by piece, to the same text as at once.

Python's encoder of JSON in C stops all other threads until it returns.
"""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import numpy as np
import pytest

from tests.support.codecs import of_objects
from zarrfs.codecs.chain import CodecChain
from zarrfs.codecs.json2 import Json2
from zarrfs.codecs.streams import Output
from zarrfs.codecs.vlen_array import VlenArray
from zarrfs.codecs.vlen_utf8 import VlenUtf8
from zarrfs.errors import ChunkEncodeError
from zarrfs.memory import spill
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import MAX_VARIABLE_NBYTES, OBJECT

NUMBERS = [sys.float_info.max] * 17_000
MOST_NBYTES = 1 << 20


class Pieces(Output):
    """Output that remembers its pieces."""

    def __init__(self) -> None:
        super().__init__("json2", MAX_VARIABLE_NBYTES)
        self.pieces: list[bytes] = []

    def add(self, piece: bytes) -> None:
        self.pieces.append(piece)
        super().add(piece)


def json2(**members: Any) -> Json2:
    return Json2.from_spec(Json2.complete(CodecSpec("numcodecs.json2", members), np.dtype(object)))


ELEMENTS: dict[str, list[Any]] = {
    "long lists": [NUMBERS, 1, NUMBERS, NUMBERS],
    "a long list of lists": [[NUMBERS[:10]] * 1700, None],
    "a long object": [{"b": NUMBERS, "a": {str(each): each for each in range(9000)}}],
    "long numbers": [[10**4000] * 90] * 2 + [10**4000] * 90,
    "long texts": ['é"\\\n' * 500_000, "", "x" * 1_100_000],
    "short ones": list(range(20_000)),
    "long ones after short ones": [*range(3000), NUMBERS, *range(3000), NUMBERS],
}


@pytest.mark.parametrize("name", ELEMENTS)
@pytest.mark.parametrize(
    "members",
    [{}, {"ensure_ascii": False, "separators": [", ", ": "], "sort_keys": False}, {"encoding": "utf-16"}, {"indent": 1}],
    ids=["default", "other text", "two bytes", "indented"],
)
def test_the_text_is_that_of_one_call(name: str, members: dict[str, Any]) -> None:
    elements, codec = ELEMENTS[name], json2(**members)
    for shape in ((len(elements),), (1, len(elements)), (len(elements), 1)):
        nested = np.empty(len(elements), object)
        nested[:] = elements if len(elements) > 1 else [None]
        nested[0] = elements[0]
        plain = json.dumps(
            [*nested.reshape(shape).tolist(), "|O", list(shape)],
            ensure_ascii=codec.ensure_ascii,
            sort_keys=codec.sort_keys,
            indent=codec.indent,
            separators=codec.separators,
        )
        assert bytes(codec.encoded(elements, shape)) == plain.encode(codec.text)


def test_no_call_encodes_much() -> None:
    for elements in ([NUMBERS * 4] * 2, [NUMBERS] * 8, [{"a": [NUMBERS] * 8}], [NUMBERS[:100]] * 800, [10**4000] * 600):
        output = Pieces()
        json2().put(iter(elements), (len(elements),), output)
        assert output.nbytes > MOST_NBYTES
        assert max(map(len, output.pieces)) <= MOST_NBYTES


def test_long_elements_are_not_held_together() -> None:
    """Each may take as much memory as there is for one."""
    in_use = most = 0

    class Heavy(list[Any]):
        def __init__(self, values: list[Any]) -> None:
            nonlocal in_use, most
            super().__init__(values)
            in_use += 1
            most = max(most, in_use)

        def __del__(self) -> None:
            nonlocal in_use
            in_use -= 1

    json2().put((Heavy(NUMBERS) for _ in range(9)), (9,), Pieces())
    assert most == 1


def test_a_chunk_of_long_arrays_is_converted_as_a_short_one_is() -> None:
    stored = CodecChain.build((CodecSpec("numcodecs.vlen-array", {"dtype": "<f8"}),), OBJECT)
    shown = CodecChain.build((CodecSpec("numcodecs.json2"),), OBJECT)
    elements = [[float(each) for each in range(60_000)], [], [0.5]] * 12
    data = VlenArray(np.dtype("<f8")).encoded(elements, (36,))
    text = json.dumps([*elements, "|O", [36]], separators=(",", ":")).encode()
    assert bytes(stored.transcode(data, (36,), shown)) == text
    assert bytes(shown.encode(of_objects(elements, (36,)))) == text


@pytest.mark.parametrize("text", ["x" * 100_000, "é" * 100_000])
def test_one_text_that_is_many_elements(text: str) -> None:
    encoded = VlenUtf8().encoded([text, ""] * 200, (400,))
    assert spill.is_large(memoryview(encoded).nbytes)
    assert VlenUtf8().decoded(encoded, 400) == [text, ""] * 200
    for size in (3000, 10**9 // len(text)):
        with pytest.raises(ChunkEncodeError, match="limit"):
            VlenUtf8().encoded(list(itertools.repeat(text, size)), (size,))
