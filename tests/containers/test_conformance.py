"""The conformance suite of containers, over every one that is registered."""

from __future__ import annotations

import pytest

from tests.containers.conformance import ContainerConformance
from zarrfs import registry


@pytest.mark.parametrize("container", [pytest.param(each, id=each.name) for each in registry.plugins("zarrfs.containers")])
class TestConformance(ContainerConformance):
    """See `ContainerConformance`."""
