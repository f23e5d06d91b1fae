"""The fill value of layouts that use one for two meanings, as ``zarr3/`` shows it: the inverse of `zarrfs.views.shown_fill`.

In Zarr v0 to v2, ``fill_value`` is the value of missing chunks, and readers also take it for the CF attribute ``_FillValue``:
elements that equal it are missing data. In final v3 the two are separate. An array with named dimensions (no CF reader opens
another) appears with

    fill_value   the value of missing chunks; for null, that of an undefined fill value (zeros)
    _FillValue   the stored fill value, in the form that xarray writes in v3; for null, the stored attribute in that form

A stored attribute in which readers of v2 find no element is left out: readers of v3 fail on it. Writes are converted in the other
direction. With F the ``fill_value`` and D the ``_FillValue`` of a document:

    D is absent            the fill value is F, or null if F is zero: zeros are then not missing data
    D equals F             the fill value is F
    F is zero, not D       the fill value is null, D is in the attributes
    F is NaN, not D        the fill value is D: a missing chunk is missing data either way
    else                   refused: one value cannot be both

xarray creates an array without attributes and adds them in a second document, so the last two are edits as well. The attribute is
stored as a plain number (netCDF masks by it), and not at all for NaN: NaN is missing data without it. Text and byte strings keep
their attribute: xarray opens no v3 array with one. docs/design/024-fill-values.md has the evidence.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from zarrfs import registry
from zarrfs.dialects.documents import dump
from zarrfs.errors import ContentInvalid
from zarrfs.model import cf_fill_value as cf
from zarrfs.model.data_type import DataType
from zarrfs.model.fill_value import undefined
from zarrfs.model.metadata import ArrayNode

Attributes = Mapping[str, Any]


def shown_attributes(node: ArrayNode, *, named: bool) -> Attributes:
    """Return the attributes with ``_FillValue`` in the form of v3 readers. ``named``: True if the dimensions have names."""
    data_type, fill_value = node.metadata.data_type, node.metadata.fill_value
    if not is_shared(node.dialect) or not cf.is_read_back(data_type):
        return node.attributes
    attributes = dict(node.attributes)
    stored = attributes.pop(cf.NAME, None)
    shown = cf.encode(data_type, fill_value) if named and fill_value is not None else cf.from_v2(data_type, stored)
    if shown is not None:
        attributes[cf.NAME] = shown
    return attributes


def new_fill(ident: str, dialect: str, written: ArrayNode, *, named: bool) -> tuple[bytes | None, Attributes]:
    """Return the fill value and attributes of a new array of ``dialect`` with the document ``written``. Raises `ContentInvalid`."""
    data_type, own, attributes = written.metadata.data_type, written.metadata.fill_bytes, written.attributes
    if not is_shared(dialect) or not cf.has_form(data_type):
        return own, attributes
    is_marked = cf.NAME in attributes
    start = None if own == undefined(data_type) and (named or is_marked) else own
    if not is_marked:
        return start, attributes
    return _joined(ident, dialect, data_type, start, attributes, named=named)


def changed_fill(ident: str, node: ArrayNode, written: Attributes, *, named: bool) -> tuple[bytes | None, Attributes]:
    """Return the new fill value of ``node`` (None if unchanged) and its new attributes. Raises `ContentInvalid`.

    ``written``: the attributes of a document that is written over the one that the view shows.
    """
    data_type, fill_value = node.metadata.data_type, node.metadata.fill_value
    if not is_shared(node.dialect) or not cf.has_form(data_type):
        return None, written
    shown, stored = shown_attributes(node, named=named), node.attributes
    if cf.NAME not in written:
        is_in_fill_value = named and fill_value is not None and cf.is_read_back(data_type)
        stays = is_in_fill_value or cf.NAME not in shown
    else:
        stays = cf.NAME in shown and _is_same(data_type, shown[cf.NAME], written[cf.NAME])
    if not stays and cf.NAME in written:
        fill, attributes = _joined(ident, node.dialect, data_type, fill_value, written, named=named)
        return fill if fill != fill_value else None, attributes
    kept = {cf.NAME: stored[cf.NAME]} if stays and cf.NAME in stored else {}
    return None, {**{name: value for name, value in written.items() if name != cf.NAME}, **kept}


def with_shown_fill(node: ArrayNode, written: ArrayNode) -> ArrayNode:
    """Return ``written`` with the fill value of ``node``, if it has NaN there and that value as ``_FillValue``.

    `new_fill` replaced NaN by the ``_FillValue``; the program that created the array writes NaN again.
    """
    data_type, fill_value = node.metadata.data_type, node.metadata.fill_value
    if (
        is_shared(node.dialect)
        and fill_value is not None
        and cf.is_nan(written.metadata.data_type, written.metadata.fill_bytes)
        and cf.are_equal(data_type, fill_value, cf.decode(data_type, written.attributes.get(cf.NAME)))
    ):
        return replace(written, metadata=replace(written.metadata, fill_value=fill_value))
    return written


def has_nan(node: ArrayNode) -> bool:
    """Return True if the fill value is NaN."""
    return cf.is_nan(node.metadata.data_type, node.metadata.fill_bytes)


def with_defined_fill(node: ArrayNode, written: ArrayNode, *, is_new: bool) -> ArrayNode:
    """Return ``node`` with the fill value of ``written``, if it defines the one of ``node``, else ``node`` itself.

    ``is_new``: no program has stated the fill value of ``node`` yet (`zarrfs.hierarchy.undefined_fills`).
    """
    fill_value = written.metadata.fill_bytes
    if not (is_new or node.metadata.fill_value is None) or fill_value == node.metadata.fill_bytes:
        return node
    return replace(node, metadata=replace(node.metadata, fill_value=fill_value))


def with_stored_nan(node: ArrayNode, written: ArrayNode) -> ArrayNode:
    """Return ``written`` with the fill value of ``node``, if it differs from that only by "NaN" for another NaN.

    zarr-python reads every NaN of a document as "NaN", and writes that with its changes of shape and attributes.
    """
    fill_value = node.metadata.fill_bytes
    if cf.with_plain_nan(node.metadata.data_type, fill_value) != written.metadata.fill_bytes:
        return written
    return replace(written, metadata=replace(written.metadata, fill_value=fill_value))


def are_alike(data_type: DataType, one: Attributes, other: Attributes) -> bool:
    """Return True if two sets of attributes are equivalent; one may lack a ``_FillValue`` of NaN."""
    values = [each[cf.NAME] for each in (one, other) if cf.NAME in each]
    if len(values) == 2 and not _is_same(data_type, *values):
        return False
    if len(values) == 1 and ((element := cf.decode(data_type, values[0])) is None or not cf.is_nan(data_type, element)):
        return False
    return {**one, cf.NAME: None} == {**other, cf.NAME: None}


def in_order(before: Attributes, after: Attributes, hidden: Collection[str]) -> Attributes:
    """Return ``after`` in the order of ``before``, if all but ``hidden`` names have the same order in both.

    Programs cannot see the hidden names, so their positions in ``after`` have no meaning.
    """
    seen = [name for name in before if name in after and name not in hidden]
    if seen != [name for name in after if name in before and name not in hidden]:
        return after
    return {name: after[name] for name in (*before, *after) if name in after}


@cache
def is_shared(dialect: str) -> bool:
    """Return True if arrays of the dialect have one fill value for both meanings, which can be null."""
    return any(
        each.name == dialect and each.fill_value_marks_missing and each.has_undefined_fill
        for each in registry.plugins("zarrfs.dialects")
    )


def _joined(
    ident: str, dialect: str, data_type: DataType, fill_value: bytes | None, attributes: Attributes, *, named: bool
) -> tuple[bytes | None, Attributes]:
    """Return the fill value and attributes of an array with this fill value that gets the ``_FillValue`` in ``attributes``."""
    value = attributes[cf.NAME]
    element = cf.decode(data_type, value)
    plain = cf.to_v2(data_type, value)
    others = {name: each for name, each in attributes.items() if name != cf.NAME}
    if not cf.is_read_back(data_type):
        stored = attributes
    elif plain is not None:
        stored = {**others, cf.NAME: plain}
    elif element is not None:
        stored = others
    else:
        raise ContentInvalid(f"{ident}: {cf.NAME} {value!r} is not a value of type {data_type.name}", key=ident)
    # NaN, and a number that the type cannot hold, mark no missing data.
    if cf.are_equal(data_type, element, fill_value) or (element is None and not cf.is_read_back(data_type)):
        return fill_value, stored
    if element is None and (fill_value is None or not named or cf.is_nan(data_type, fill_value)):
        return fill_value, stored
    if fill_value is None:
        assert element is not None
        if element == undefined(data_type):
            return element, stored
        if plain is not None or cf.is_nan(data_type, element):
            return None, stored
        why = f"{dialect} cannot represent {cf.NAME} {value!r} beside it"
    elif not named and plain is not None:
        return fill_value, stored
    elif cf.is_nan(data_type, fill_value):
        return element, stored
    else:
        why = f"in {dialect} elements that equal fill_value are missing data: {cf.NAME} cannot differ from it"
    shown = None if fill_value is None else cf.encode(data_type, fill_value)
    raise ContentInvalid(f"{ident}: {cf.NAME} {value!r} and the fill value {shown!r} differ: {why}", key=ident)


def _is_same(data_type: DataType, one: Any, other: Any) -> bool:
    elements = cf.decode(data_type, one), cf.decode(data_type, other)
    return dump(one) == dump(other) or (None not in elements and cf.are_equal(data_type, *elements))
