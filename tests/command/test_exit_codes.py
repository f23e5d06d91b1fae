"""The end of a command: one line on stderr, and an exit code that scripts can distinguish."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from zarrfs.command import install
from zarrfs.command.exit_codes import EXIT_CODES, INTERRUPTED, ended
from zarrfs.command.install import Step
from zarrfs.errors import MountpointUnusable, UsageError, ZarrfsError
from zarrfs.lifecycle.interrupts import Interrupted


def raising(error: BaseException) -> Callable[[], NoReturn]:
    def command() -> NoReturn:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Interrupted(), INTERRUPTED),
        (Interrupted(15), 143),
        (KeyboardInterrupt(), INTERRUPTED),
        (BaseExceptionGroup("nurseries", [BaseExceptionGroup("inner", [KeyboardInterrupt()])]), INTERRUPTED),
    ],
    ids=["SIGINT", "SIGTERM", "Ctrl-C", "Ctrl-C in a nursery"],
)
def test_who_interrupts_a_command_is_told_nothing_but_the_code(
    error: BaseException, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ended(raising(error), ()) == code
    assert capfd.readouterr() == ("", "")


def test_what_no_command_may_swallow_is_raised_on() -> None:
    with pytest.raises(BaseExceptionGroup, match="both"):
        ended(raising(BaseExceptionGroup("both", [SystemExit(3), GeneratorExit()])), ())


def test_a_reader_who_went_away_is_not_worth_a_word(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    assert ended(raising(BrokenPipeError()), ()) == 1
    # The interpreter does not print an error either, when it flushes at the end.
    assert sys.stdout is None
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("error", [UsageError("no such option"), MountpointUnusable("there is a file")])
def test_an_error_is_one_line_and_its_code(error: ZarrfsError, capfd: pytest.CaptureFixture[str]) -> None:
    assert ended(raising(error), ()) == EXIT_CODES[type(error)]
    told = capfd.readouterr()
    assert told.out == "" and str(error) in told.err and told.err.count("\n") == 1


@pytest.mark.parametrize(("result", "code"), [(None, 0), (0, 0), (3, 3), ("text", 0)])
def test_a_command_that_ends_well_says_its_code(result: object, code: int) -> None:
    assert ended(lambda: result, ()) == code


# --- links ----------------------------------------------------------------------------------------------------------------------------


def test_a_link_that_cannot_be_put_in_its_place_leaves_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mount.zarrfs").mkdir()
    with pytest.raises(OSError, match="directory"):
        Step(tmp_path / "mount.zarrfs", tmp_path / "target").do()
    assert os.listdir(tmp_path) == ["mount.zarrfs"]


def test_a_package_without_its_commands_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts, beside = tmp_path / "scripts", tmp_path / "beside"
    for folder in (scripts, beside):
        folder.mkdir()
    monkeypatch.setattr(install.sysconfig, "get_path", lambda name: str(scripts))
    monkeypatch.setattr(sys, "argv", [str(beside / "zarrfs")])
    monkeypatch.setattr(install, "FOLDER", tmp_path)
    with pytest.raises(ZarrfsError, match=f"not all in {scripts} or {beside}: install the package"):
        install.commands()
    for name in ("zarrfs", *install.LINKS.values()):
        (beside / name).touch(0o755)
    assert install.commands() == beside
