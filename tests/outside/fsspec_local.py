"""fsspec's tests of any file system, for its local one: its package has them as classes, and its source distribution has no others."""

from __future__ import annotations

import os
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem, make_path_posix
from fsspec.tests import abstract


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self) -> Any:
        return LocalFileSystem(auto_mkdir=True)

    @pytest.fixture
    def fs_path(self, tmpdir: Any) -> str:
        return str(tmpdir)

    @pytest.fixture
    def fs_sanitize_path(self) -> Any:
        return make_path_posix

    @pytest.fixture
    def fs_join(self) -> Any:
        return os.path.join


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass
