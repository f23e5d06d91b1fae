"""The elements in the text of `json2`, one after the other, for chunks that do not fit into memory as objects.

Only a window of the text is in use. It is as long as the element that begins in it requires.
"""

from __future__ import annotations

import codecs
import itertools
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from zarrfs import threads
from zarrfs.codecs.streams import Output
from zarrfs.codecs.vlen import ALONE_NBYTES
from zarrfs.errors import ChunkDecodeError, TooLarge

_WINDOW = 1 << 20
# Memory of a list or an object of one value, besides its text.
_VALUE_NBYTES = 232
_SHAPE_NBYTES = 4096
_BATCH = 1024
# Numbers (or as much text) encoded in one call: Python's encoder in C stops all other threads until it returns.
_CALL_WEIGHT = 1 << 14
_CHARACTERS = 64
_BITS = 64
_PIECES = 4096
_BATCH_TEXT = 1 << 16
# Values taken one by one before a batch is tried again.
_PATIENCE = 256
_SPACE = re.compile(r"[ \t\n\r]*")


def elements_of(data: memoryview, encoding: str, decoder: json.JSONDecoder, size: int) -> Iterator[Any]:
    """Yield the ``size`` elements in ``data``. Raises `ChunkDecodeError`, and `TooLarge` for one that takes too much memory."""
    shape = _shape_of(data, size)
    window = _Window(data, encoding, decoder)
    window.expect("[")
    if not shape:
        yield window.value()
    else:
        yield from _row(window, shape)
    window.expect(",")
    if not isinstance(window.value(), str):
        raise ChunkDecodeError("json2: not a list of elements followed by type and shape")
    window.expect(",")
    window.value()
    window.expect("]")
    window.end()


def is_heavy(values: list[Any]) -> bool:
    """Return True if the encoding of ``values`` takes longer than other threads should wait."""
    return _weight(values, _CALL_WEIGHT) > _CALL_WEIGHT


def put_pieces(pieces: Iterator[str], output: Output, encoding: str) -> None:
    """Write text that Python's encoder yields in small pieces."""
    # One encoder for all of them: some encodings begin with a byte order mark.
    encoder = codecs.getincrementalencoder(encoding)()
    while block := "".join(itertools.islice(pieces, _PIECES)):
        threads.go_on()
        output.add(encoder.encode(block))


def put_elements(
    elements: Iterable[Any],
    shape: tuple[int, ...],
    output: Output,
    dumped: Callable[[Any], bytes],
    put_heavy: Callable[[Any, Output], None],
    separator: str,
) -> None:
    """Write the text of a list of ``elements`` of a chunk of ``shape``, followed by their type and the shape.

    ``dumped`` returns the text of a list; ``put_heavy`` writes that of an element that is encoded in pieces.
    """
    comma = separator.encode()
    values = iter(elements)

    def row(lengths: tuple[int, ...]) -> None:
        if len(lengths) > 1:
            for index in range(lengths[0]):
                output.add((comma if index else b"") + b"[")
                row(lengths[1:])
                output.add(b"]")
            return
        put = 0
        while put < lengths[0]:
            batch, heavy = _batch(values, min(_BATCH, lengths[0] - put))
            if batch:
                output.add((comma if put else b"") + dumped(batch)[1:-1])
            put += len(batch)
            while heavy:
                output.add(comma if put else b"")
                # Not held while the next one is fetched.
                put_heavy(heavy.pop(), output)
                put += 1

    output.add(b"[")
    row(shape or (1,))
    output.add(comma + dumped("|O") + comma + dumped(list(shape)) + b"]")


def _batch(values: Iterator[Any], most: int) -> tuple[list[Any], list[Any]]:
    """Return the next values, at most ``most``: those that one call encodes, and the heavy one that follows, if any.

    Elements may be as large as memory allows, so that none is fetched beside a heavy one.
    """
    batch: list[Any] = []
    left = _CALL_WEIGHT
    while left > 0 and len(batch) < most:
        each = next(values)
        weight = 1 if isinstance(each, str) and len(each) < _CHARACTERS else _weight(each, _CALL_WEIGHT)
        if weight > _CALL_WEIGHT:
            return batch, [each]
        batch.append(each)
        left -= weight
    return batch, []


def _weight(value: Any, most: int) -> int:
    """Return the number of values in ``value``, with long texts and numbers as several; a number above ``most`` if it is larger."""
    weight, left = 0, [value]
    while left and weight <= most:
        each = left.pop()
        weight += 1
        if isinstance(each, str):
            weight += len(each) // _CHARACTERS
        elif isinstance(each, int):
            weight += each.bit_length() // _BITS
        elif isinstance(each, list | dict):
            if len(each) > most:
                return most + len(each)
            left.extend(each)
            if isinstance(each, dict):
                left.extend(each.values())
    return weight


def _row(window: _Window, shape: tuple[int, ...]) -> Iterator[Any]:
    if len(shape) == 1:
        yield from _values(window, shape[0])
        return
    for index in range(shape[0]):
        if index:
            window.expect(",")
        window.expect("[")
        yield from _row(window, shape[1:])
        window.expect("]")


def _values(window: _Window, count: int) -> Iterator[Any]:
    """Yield the elements of a row, in batches where possible."""
    patience = 0
    while count:
        batch = window.batch(count - 1) if count > _BATCH and not patience else []
        if batch:
            yield from batch
            count -= len(batch)
            continue
        patience = patience - 1 if patience else _PATIENCE
        yield window.value()
        count -= 1
        if count:
            window.expect(",")


def _shape_of(data: memoryview, size: int) -> tuple[int, ...]:
    """Return the shape at the end of the text."""
    tail = bytes(data[-_SHAPE_NBYTES:])
    try:
        shape = json.loads(tail[tail.rindex(b"[") :].rstrip().removesuffix(b"]"))
    except ValueError as error:
        raise ChunkDecodeError("json2: not a list of elements followed by type and shape") from error
    if not isinstance(shape, list) or any(type(each) is not int or each < 0 for each in shape) or math.prod(shape) != size:
        raise ChunkDecodeError(f"json2: shape does not have the {size} elements of the chunk")
    return tuple(shape)


class _Window:
    def __init__(self, data: memoryview, encoding: str, decoder: json.JSONDecoder) -> None:
        self._data = data
        self._next = 0
        self._text = ""
        self._at = 0
        self._decode = codecs.getincrementaldecoder(encoding)()
        self._decoder = decoder

    def expect(self, mark: str) -> None:
        if not self._skip() or self._text[self._at] != mark:
            raise ChunkDecodeError(f"json2: missing {mark!r}")
        self._at += 1

    def value(self) -> Any:
        self._skip()
        step = _WINDOW
        while True:
            value: Any = None
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except RecursionError as error:
                raise ChunkDecodeError(f"json2: {error}") from error
            except ValueError as error:
                # The error has the whole text, which is not held beside its copy.
                why = str(error)
            else:
                why = ""
                if end < len(self._text):
                    self._at = end
                    return value
            # A number may continue.
            if not self._more(step):
                if why:
                    raise ChunkDecodeError(f"json2: {why}")
                self._at = end
                return value
            step *= 2

    def batch(self, most: int) -> list[Any]:
        """Return values up to and past a comma that is not within one; none if that is not found at once, or there are more."""
        if len(self._text) - self._at < _BATCH_TEXT:
            self._more(_WINDOW)
        # Text that ends within a value cannot be parsed.
        cut = self._text.rfind(",", self._at, self._at + _BATCH_TEXT)
        for mark in ("],", "},"):
            batch = self._parsed(cut)
            if batch is not None:
                break
            cut = self._text.rfind(mark, self._at, self._at + _BATCH_TEXT) + 1
        else:
            batch = self._parsed(cut)
        if batch is None or len(batch) > most:
            return []
        self._at = cut + 1
        return batch

    def _parsed(self, cut: int) -> list[Any] | None:
        if cut <= self._at:
            return None
        try:
            values: list[Any] = self._decoder.decode(f"[{self._text[self._at : cut]}]")
        except (ValueError, RecursionError):
            return None
        return values

    def end(self) -> None:
        if self._skip():
            raise ChunkDecodeError("json2: trailing data after the elements")

    def _skip(self) -> bool:
        """Skip white space; return True if anything is left."""
        while True:
            found = _SPACE.match(self._text, self._at)
            assert found is not None
            self._at = found.end()
            if self._at < len(self._text):
                return True
            if not self._more(_WINDOW):
                return False

    def _more(self, nbytes: int) -> bool:
        """Extend the window, and drop the consumed text; return False at the end of the data."""
        if self._next >= len(self._data):
            return False
        rest = self._text[self._at :]
        # Not held beside its copy.
        self._text, self._at = "", 0
        piece = self._data[self._next : self._next + nbytes]
        self._next += len(piece)
        try:
            more = self._decode.decode(piece, self._next >= len(self._data))
        except UnicodeDecodeError as error:
            raise ChunkDecodeError(f"json2: {error}") from error
        if len(rest) > _WINDOW:
            values = sum(map(rest.count, ",:[{"))
            # The text, and a text in it.
            if values * _VALUE_NBYTES + 2 * max(map(_width, (rest, more))) * (len(rest) + len(more)) > ALONE_NBYTES:
                raise TooLarge(f"json2: an element of at least {values} values exceeds the memory limit")
        self._text = rest + more
        return True


def _width(text: str) -> int:
    """Return the number of bytes of each character in memory: that of its widest one."""
    return 1 if text.isascii() else sys.getsizeof(text) // len(text)
