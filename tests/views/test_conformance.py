"""The conformance suite of views, over every registered view."""

from __future__ import annotations

import pytest

from tests.views.conformance import ViewConformance
from zarrfs import registry


@pytest.mark.parametrize("plugin", [pytest.param(each, id=each.name) for each in registry.plugins("zarrfs.views")])
class TestConformance(ViewConformance):
    """See `ViewConformance`."""
