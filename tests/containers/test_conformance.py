"""The conformance suites of containers, over every registered one, and a group format for tests."""

from __future__ import annotations

import pytest

from tests.containers.conformance import ContainerConformance, GroupContainerConformance
from tests.support.bundle_container import Bundle
from zarrfs import registry
from zarrfs.containers.base import Container, FileFormat, GroupContainer

FORMATS: tuple[FileFormat, ...] = registry.plugins("zarrfs.containers")
GROUP_FORMATS = {each.name: each for each in (Bundle(), *FORMATS) if isinstance(each, GroupContainer)}


@pytest.mark.parametrize("container", [pytest.param(each, id=each.name) for each in FORMATS if isinstance(each, Container)])
class TestConformance(ContainerConformance):
    """See `ContainerConformance`."""


@pytest.mark.parametrize("container", [pytest.param(each, id=name) for name, each in GROUP_FORMATS.items()])
class TestGroupConformance(GroupContainerConformance):
    """See `GroupContainerConformance`."""
