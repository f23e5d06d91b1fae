"""Arrays that a view is known to show, without rendering their documents: a listing of thousands renders few.

A view refuses an array for its type, grid, fill value, codecs or chunk keys, never for its shape. Arrays that agree in all these, and in
the attributes that views interpret, are of one form; of each form one array is rendered.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from zarrfs.model import cf_fill_value
from zarrfs.model.chunk_grid import RegularGrid
from zarrfs.model.metadata import ArrayNode
from zarrfs.views.shown_dimensions import DIMENSIONS

_INTERPRETED = (cf_fill_value.NAME, DIMENSIONS, "zarrfs")
# Members of `ArrayMetadata` that are compared; a store has arrays of a few forms.
_MAX_FORMS = 64
_MAX_LENGTH = 4096


class ShownForms:
    """The forms of arrays that were rendered, the most recent ones."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, None] = OrderedDict()

    def form(self, node: ArrayNode) -> str | None:
        """Return the form of an array; None if it has to be rendered."""
        metadata = node.metadata
        if not isinstance(metadata.chunk_grid, RegularGrid) or metadata.data_type.itemsize > _MAX_LENGTH:
            return None
        interpreted: list[Any] = [node.attributes.get(name) for name in _INTERPRETED] if node.attributes else []
        names = metadata.dimension_names
        dtype = metadata.data_type.dtype
        of_type = metadata.data_type.name, metadata.data_type.configuration, dtype.str if dtype.names is None else dtype
        form = repr((node.dialect, node.form, metadata.ndim, of_type, metadata.fill_value, metadata.chunk_key_encoding))
        form += repr((metadata.codecs, metadata.shards, names and None in names, interpreted))
        return form if len(form) <= _MAX_LENGTH else None

    def knows(self, form: str | None) -> bool:
        """Return True if an array of this form was rendered."""
        return form in self._known

    def add(self, form: str | None) -> None:
        """Record that an array of this form was rendered."""
        if form is not None:
            self._known[form] = None
            if len(self._known) > _MAX_FORMS:
                self._known.popitem(last=False)
