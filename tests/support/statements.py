"""Statements of the specifications, what zarrfs does about each, and the test that shows it: the table of docs/CONFORMANCE.md.

A module of ``tests/conformance`` has one `Text`, adds rows to it section by section, and ends with the test of those that carry their
own check:

    TEXT = Text("v2", "Zarr storage specification version 2")
    TEXT.section("3", "Fill value encoding")
    TEXT.row("null: there is no fill value", fill_of(null, None))

    @TEXT.rule("Not a Number is the string NaN")
    def _() -> None:
        assert ...

    @TEXT.own
    def test_statement(statement: Statement) -> None:
        statement.check()

A row without a check cannot be made, and one whose check is a test of the suite names the function itself: a test that is renamed or
gone is an error at collection. ``python -m tests.conformance`` writes the document.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

AS_STATED = "as stated"
NOT_YET = "not yet: "
"""What ``does`` begins with where zarrfs does not do what a text says, and nobody decided that it should not."""

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class SuiteTest:
    """A test of the suite, with those of its kind that say the same of further cases. Raises TypeError for what is no test."""

    test: FunctionType

    def __post_init__(self) -> None:
        # A method of a suite that is inherited is a test as well as a function of a module.
        if not inspect.isfunction(self.test) or not self.test.__name__.startswith("test_"):
            raise TypeError(f"{self.test!r} is no function of a test")

    @property
    def name(self) -> str:
        """``tests/dialects/test_v2.py::test_x``."""
        file = Path(inspect.unwrap(self.test).__code__.co_filename).resolve().relative_to(_ROOT)
        return "::".join((file.as_posix(), *self.test.__qualname__.split(".")))


Check = Callable[[], object]


@dataclass(frozen=True)
class Statement:
    """One statement. ``text``: what the specification says, shortened; ``does``: what zarrfs does; ``check``: raises where it does not,
    or a test of the suite that does."""

    number: str
    section: str
    text: str
    does: str
    check: Check | SuiteTest
    marks: tuple[pytest.MarkDecorator, ...] = ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w-]+-\d+\.\d\d", self.number) or not self.section or not self.text or not self.does:
            raise ValueError(f"statement {self.number!r}: a number, a section, a text and what zarrfs does are needed")
        if isinstance(self.check, SuiteTest):
            return
        if not callable(self.check) or isinstance(self.check, type):
            raise TypeError(f"statement {self.number}: {self.check!r} is no check")
        if any(each.default is each.empty for each in inspect.signature(self.check).parameters.values()):
            raise TypeError(f"statement {self.number}: its check takes no arguments")

    @property
    def test(self) -> str:
        """What the document says of the test."""
        return self.check.name if isinstance(self.check, SuiteTest) else self.number


@dataclass
class Text:
    """One specification: its short ``name`` begins the numbers of its statements."""

    name: str
    title: str
    statements: list[Statement] = field(default_factory=list)
    _section: tuple[str, str] = ("", "")
    _count: int = 0

    def continued(self) -> Text:
        """For a further module of the same text."""
        return Text(self.name, self.title)

    def section(self, number: str, title: str) -> None:
        """What follows belongs to the section with this title; its statements are ``number``.01 and on."""
        if number in {each.number.removeprefix(f"{self.name}-").partition(".")[0] for each in self.statements}:
            raise ValueError(f"{self.name}: there is a section {number} already")
        self._section, self._count = (number, title), 0

    def row(self, text: str, check: Check | SuiteTest, does: str = AS_STATED, *, logs: str = "") -> None:
        """Add a statement; ``logs``: what zarrfs may log during its check."""
        self._count += 1
        number, title = self._section
        marks = (pytest.mark.logs(logs),) if logs else ()
        self.statements.append(Statement(f"{self.name}-{number}.{self._count:02}", title, text, does, check, marks))

    def rule(self, text: str, does: str = AS_STATED, *, logs: str = "") -> Callable[[Check], Check]:
        """`row` for a function that is the check."""

        def add(check: Check) -> Check:
            self.row(text, check, does, logs=logs)
            return check

        return add

    def tested(self, text: str, test: Any, does: str = AS_STATED) -> None:
        """`row` for a statement that a test of the suite shows."""
        self.row(text, SuiteTest(test), does)

    @property
    def own(self) -> pytest.MarkDecorator:
        """Parametrizes a test by the statements that carry their own check, with their numbers for ids."""
        carrying = [each for each in self.statements if not isinstance(each.check, SuiteTest)]
        return pytest.mark.parametrize("statement", [pytest.param(each, id=each.number, marks=each.marks) for each in carrying])


def rendered(texts: list[Text]) -> str:
    """The document."""
    lines = [_INTRODUCTION, *_counts(texts)]
    title = ""
    for text in texts:
        if text.title != title:
            title = text.title
            lines += ["", f"## {title}"]
        section = ""
        for each in text.statements:
            if each.section != section:
                section = each.section
                lines += ["", f"### {section}", "", "| no. | the text says | zarrfs | test |", "|---|---|---|---|"]
            number = each.number.removeprefix(f"{text.name}-")
            cells = (number, each.text, each.does, f"`{each.test}`")
            lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _counts(texts: list[Text]) -> Iterator[str]:
    yield "| text | statements | as stated | otherwise, with the reason | not yet |"
    yield "|---|---|---|---|---|"
    rows: dict[str, list[Statement]] = {}
    for text in texts:
        rows.setdefault(text.title, []).extend(text.statements)
    for title, statements in [*rows.items(), ("all", [each for text in texts for each in text.statements])]:
        stated = sum(each.does.startswith(AS_STATED) for each in statements)
        not_yet = sum(each.does.startswith(NOT_YET) for each in statements)
        yield f"| {title} | {len(statements)} | {stated} | {len(statements) - stated - not_yet} | {not_yet} |"


_INTRODUCTION = """\
# What zarrfs does about each statement of the specifications

Each line is one statement of a specification in short words: what a store holds, or what an implementation does. "as stated" is just
that; everything else says what zarrfs does and why. SEMANTICS.md says what users may rely on.

The last column names the test. A number is the id of a check in `tests/conformance/` (`pytest tests/conformance -k v2-3.04` runs that
one); a path is a test of the suite. This page is written by `python -m tests.conformance` from the table that those tests run, so that a
line without a test cannot be in it, and a test fails when the page is not what the table says.

"(no statement)" begins what a text leaves open, and zarrfs has to decide.
"Refused" is: the node is listed with the reason, in the views as `NAME.unsupported.txt`, and its neighbours are shown.
A quirk of a node is listed by `zarrfs info STORE NODE`.
"""
