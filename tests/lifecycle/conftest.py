"""Fixtures: a mountpoint, and the configuration of a mount on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from zarrfs.options.config import MountConfig


@pytest.fixture
def mountpoint(tmp_path: Path) -> Path:
    path = tmp_path / "a mountpoint"
    path.mkdir()
    return path


@pytest.fixture
def config(mountpoint: Path, tmp_path: Path) -> MountConfig:
    return MountConfig(store="/data/x.zarr", mountpoint=str(mountpoint), log_file=str(tmp_path / "logs/x.log"))
