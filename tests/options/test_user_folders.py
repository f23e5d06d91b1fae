from __future__ import annotations

import os
import pwd

import pytest

from zarrfs.options import user_folders


def test_absolute_ones_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert (user_folders.state(), user_folders.cache()) == ("/state", "/cache")


@pytest.mark.parametrize("relative", ["", "state", "./state", "~/state"])
def test_relative_ones_are_ignored(relative: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", relative)
    monkeypatch.setenv("XDG_CACHE_HOME", relative)
    monkeypatch.setenv("HOME", "/home/of")
    assert (user_folders.state(), user_folders.cache()) == ("/home/of/.local/state", "/home/of/.cache")


@pytest.mark.parametrize("home", ["relative", "", None])
def test_without_a_home_it_is_that_of_the_user(home: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    if home is not None:
        monkeypatch.setenv("HOME", home)
    assert user_folders.state() == os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".local/state")
