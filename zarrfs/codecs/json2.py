"""``numcodecs.json2``: the elements as JSON text.

Source: numcodecs ``json2``. `zarrfs.codecs.object_text` has the format.

    {"id": "json2", "encoding": "utf-8", "skipkeys": false, "ensure_ascii": true, "check_circular": true, "allow_nan": true,
     "sort_keys": true, "indent": null, "separators": [",", ":"], "strict": true}

``NaN`` and ``Infinity`` are accepted although JSON lacks them: numcodecs writes them. Text nested more deeply than Python's parser allows
(some hundred levels) is refused, and so is text of more than `MAX_VALUES` values: each takes many times its two bytes in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from zarrfs.buffers import Buffer
from zarrfs.codecs.base import ChunkSpec
from zarrfs.codecs.configuration import boolean, choice, only, short
from zarrfs.codecs.json_elements import elements_of, is_heavy, put_elements, put_pieces
from zarrfs.codecs.object_text import MAX_VALUES, ObjectTextCodec, packed, unpacked
from zarrfs.codecs.streams import Output
from zarrfs.errors import ChunkDecodeError, ChunkEncodeError, MetadataError, TooLarge
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import MAX_VARIABLE_NBYTES

_DEFAULTS: dict[str, Any] = {
    "encoding": "utf-8",
    "skipkeys": False,
    "ensure_ascii": True,
    "check_circular": True,
    "allow_nan": True,
    "sort_keys": True,
    "indent": None,
    "separators": [",", ":"],
    "strict": True,
}
_ENCODINGS = ("utf-8", "utf8", "ascii", "latin-1", "utf-16", "utf-32")
_MAX_INDENT = 16
# One of these precedes each value, and each key, of a list or an object.
_MARKS = (b",", b":", b"[", b"{")
_PIECE_NBYTES = 1 << 20
# Encodings in which the marks of JSON are single bytes.
_BYTE_ENCODINGS = ("utf-8", "utf8", "ascii", "latin-1")


@dataclass(frozen=True, slots=True)
class Json2(ObjectTextCodec):
    """``text``: the encoding of the text; ``strict``: strings may not contain control characters; other members affect only writing."""

    names: ClassVar[tuple[str, ...]] = ("numcodecs.json2",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("json2",)
    codec_name: ClassVar[str] = "json2"
    defaults: ClassVar[Mapping[str, Any]] = _DEFAULTS
    examples: ClassVar[tuple[CodecSpec, ...]] = (
        CodecSpec("numcodecs.json2", _DEFAULTS),
        CodecSpec("numcodecs.json2", {**_DEFAULTS, "ensure_ascii": False, "indent": 1, "separators": [", ", ": "]}),
    )

    text: str
    strict: bool
    ensure_ascii: bool
    allow_nan: bool
    sort_keys: bool
    indent: int | None
    separators: tuple[str, str]

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        only(spec, *_DEFAULTS)
        for name in ("skipkeys", "check_circular"):
            boolean(spec, name, False)
        indent, separators = spec.configuration.get("indent"), spec.configuration.get("separators")
        if indent is not None and (type(indent) is not int or not 0 <= indent <= _MAX_INDENT):
            raise MetadataError(f"codec json2: indent must be null or an integer up to {_MAX_INDENT}, not {short(indent)}")
        if separators is None:
            separators = [",", ":"] if indent is None else [", ", ": "]
        if not isinstance(separators, list) or [str(each).strip() for each in separators] != [",", ":"]:
            raise MetadataError(f"codec json2: separators must be a comma and a colon, not {short(separators)}")
        return cls(
            choice(spec, "encoding", _ENCODINGS, "utf-8"),
            boolean(spec, "strict", True),
            boolean(spec, "ensure_ascii", True),
            boolean(spec, "allow_nan", True),
            boolean(spec, "sort_keys", True),
            indent,
            (str(separators[0]), str(separators[1])),
        )

    def each(self, data: Buffer, spec: ChunkSpec) -> Iterator[Any]:
        if self.text not in _BYTE_ENCODINGS:
            raise TooLarge(f"json2: {memoryview(data).nbytes} bytes of text in {self.text} exceed the memory limit")
        view = memoryview(data).cast("B")
        _check_values(view)
        return elements_of(view, self.text, json.JSONDecoder(strict=self.strict), spec.size)

    def put(self, elements: Iterable[Any], shape: tuple[int, ...], output: Output) -> None:
        put_elements(elements, shape, output, self._dumped, self._put_heavy, self.separators[0])

    def _put_heavy(self, value: Any, output: Output, indent: int | None = None) -> None:
        try:
            put_pieces(self._encoder(indent).iterencode(value), output, self.text)
        except (TypeError, ValueError, RecursionError) as error:
            raise ChunkEncodeError(f"json2: {error}") from error

    def _dumped(self, value: Any, indent: int | None = None) -> bytes:
        try:
            return self._encoder(indent).encode(value).encode(self.text)
        except (TypeError, ValueError, RecursionError) as error:
            raise ChunkEncodeError(f"json2: {error}") from error

    def _encoder(self, indent: int | None) -> json.JSONEncoder:
        return json.JSONEncoder(
            ensure_ascii=self.ensure_ascii,
            allow_nan=self.allow_nan,
            sort_keys=self.sort_keys,
            indent=indent,
            separators=self.separators,
        )

    def encoded(self, elements: list[Any], shape: tuple[int, ...]) -> Buffer:
        if not is_heavy(elements):
            return self._dumped(packed(elements, shape), self.indent)
        output = Output("json2", MAX_VARIABLE_NBYTES, kind=ChunkEncodeError)
        if self.indent is None and self.text in _BYTE_ENCODINGS:
            self.put(elements, shape, output)
        else:
            self._put_heavy(packed(elements, shape), output, self.indent)
        return output.whole()

    def decoded(self, data: Buffer, size: int) -> list[Any]:
        _check_values(memoryview(data))
        try:
            items = json.loads(str(memoryview(data), self.text), strict=self.strict)
        except (ValueError, RecursionError) as error:
            raise ChunkDecodeError(f"json2: {error}") from error
        return unpacked("json2", items, size)


def _check_values(view: memoryview) -> None:
    count = 0
    for start in range(0, view.nbytes, _PIECE_NBYTES):
        count += sum(map(bytes(view[start : start + _PIECE_NBYTES]).count, _MARKS))
        if count > MAX_VALUES:
            raise ChunkDecodeError(f"json2: text exceeds the limit of {MAX_VALUES} values")


PLUGIN = Json2
