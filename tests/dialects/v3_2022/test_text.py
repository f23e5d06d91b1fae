"""The conformance suite of dialects, over the form of the text of 2022: new hierarchies normally have the form of the software."""

from __future__ import annotations

import pytest

from tests.dialects.conformance import DialectConformance
from zarrfs.dialects.v3_2022.dialect import V3Draft2022, V3Draft2022Layout
from zarrfs.dialects.v3_2022.entry_point import EntryPoint
from zarrfs.keys import Prefix


class TextForm(V3Draft2022):
    """The dialect with new hierarchies in the form of the text."""

    def create(self, prefix: Prefix) -> V3Draft2022Layout:
        return V3Draft2022Layout(self, prefix, EntryPoint(software=False))


class OddSuffix(V3Draft2022):
    """The dialect with new hierarchies whose documents are not called ``.json``."""

    def create(self, prefix: Prefix) -> V3Draft2022Layout:
        return V3Draft2022Layout(self, prefix, EntryPoint(software=False, suffix=".meta"))


@pytest.mark.parametrize("dialect", [pytest.param(TextForm(), id="text"), pytest.param(OddSuffix(), id="suffix")])
class TestConformance(DialectConformance):
    """See `DialectConformance`."""
