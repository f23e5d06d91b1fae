"""README.md: its commands work, their output is as shown, and its drawing matches a mount."""

from __future__ import annotations

import doctest
import os
import re
import shutil
from pathlib import Path

import pytest

from .support.fresh_machine import type_in
from .support.mounting import mounted
from .support.namespace import require_namespace
from .support.readme import README, File, Line, Section, drawing, sections

TEXT = README.read_text()
SECTIONS = sections(TEXT)
DEMO = README.with_name("demo") / "example.zarr"

NOT_HERE = {
    "apt": "changes the machine",
    "git": "the repository has no address that could be known here",
    "make": "a test of its own: .ci/run runs each target that the page names",
    "systemctl": "needs a running systemd",
}
"""Programs whose lines are not run, with the reason."""
NOT_DEMANDED = {"julia", "matlab"}
"""Programs that Debian does not have; their lines are run where they are installed."""

NOT_EACH_TIME = {
    "C",
    "Julia",
    "Octave and MATLAB",
    "R",
    "GDAL and netCDF",
    "Converting an old archive",
    "systemd",
    "fstab",
    "Options",
}
"""Sections for full runs only: their programs all get the same file, or the tests of their own subjects cover them."""

pytestmark = pytest.mark.fuse


AT_LAST = Line(
    0, 'for each in $(findmnt -n -l -o TARGET -t fuse.zarrfs); do zarrfs umount "$each" 2>/dev/null || [ $? = 7 ]; done', ""
)
"""Unmounts everything. Exit code 7 stands for intentional refusals."""


def matches(promised: str, output: str) -> bool:
    return doctest.OutputChecker().check_output(promised, output, doctest.ELLIPSIS)


def here(section: Section) -> list[Line | File]:
    return [step for step in section.steps if not (isinstance(step, Line) and step.programs() & NOT_HERE.keys())]


START = next(section for section in SECTIONS if section.title == "Start")


def _sections() -> list[object]:
    marks = {section.title: [pytest.mark.full_length] if section.title in NOT_EACH_TIME else [] for section in SECTIONS}
    return [pytest.param(section, id=section.title, marks=marks[section.title]) for section in SECTIONS if section.lines()]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("section", _sections())
def test_what_the_page_says_to_type_does_what_it_says(section: Section) -> None:
    require_namespace()
    demanded = os.environ.get("ZARRFS_REQUIRE_FUSE") == "1"
    if not demanded and any("pip install" in line.text for line in section.lines()):
        pytest.skip("needs a package index and a minute")
    begin = [] if section is START else here(START)
    steps = [*begin, *here(section), AT_LAST]
    answers = type_in(steps, timeout=380)
    for answer in answers:
        where = f"README.md:{answer.line.number}: $ {answer.line.text}\n{answer.output}"
        if answer.code is None:
            missing = {program for program in answer.line.programs() if shutil.which(program) is None}
            assert not demanded or missing & NOT_DEMANDED, f"{where}not installed: {missing}"
        else:
            assert answer.code == 0, f"{where}exit code {answer.code}"
            assert matches(answer.line.answer, answer.output), f"{where}promised:\n{answer.line.answer}"
    typed = [step for step in steps if isinstance(step, Line)]
    assert [answer.line for answer in answers] == typed, f"the shell ended at README.md:{typed[len(answers)].number}"


def test_lines_outside_of_blocks_are_noticed() -> None:
    with pytest.raises(ValueError, match="line 2 is in no block"):
        sections("## A\n$ ls\n")


@pytest.mark.parametrize(
    ("line", "programs"),
    [
        ("A=1 ls x | sort && sudo tee -a y", {"ls", "sort", "tee"}),
        ("gcc a.c -o a && ./a || echo 'no | yes'", {"gcc", "echo"}),
        ('sudo "$(which zarrfs)" install', set()),
        (". bin/activate", {"."}),
    ],
)
def test_programs_of_a_line(line: str, programs: set[str]) -> None:
    assert Line(1, line, "").programs() == programs


def test_the_drawing_is_what_is_mounted() -> None:
    with mounted(DEMO, "--read-only") as mount:
        assert matches(drawing(TEXT), "".join(drawn(mount.path)))
        for name, size in re.findall(r"^[├└│ ]+── (\S+) +(\d+) bytes", TEXT, re.MULTILINE):
            assert any(path.stat().st_size == int(size) for path in mount.path.rglob(name)), f"no {name} of {size} bytes"


def drawn(folder: Path, indent: str = "") -> list[str]:
    """Return the lines of tree(1)."""
    names, rows = sorted(os.listdir(folder)), []
    for name in names:
        last = name == names[-1]
        rows.append(f"{indent}{'└' if last else '├'}── {name}\n")
        if (folder / name).is_dir():
            rows.extend(drawn(folder / name, f"{indent}{' ' if last else '│'}   "))
    return rows
