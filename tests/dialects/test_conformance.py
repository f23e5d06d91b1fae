"""The conformance suite of dialects, over every registered one."""

from __future__ import annotations

import pytest

from tests.dialects.conformance import DialectConformance
from zarrfs import registry


@pytest.mark.parametrize("dialect", [pytest.param(each, id=each.name) for each in registry.plugins("zarrfs.dialects")])
class TestConformance(DialectConformance):
    """See `DialectConformance`."""
