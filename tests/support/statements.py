"""The table of docs/CONFORMANCE.md: statements of the specifications, the behaviour of zarrfs, and the test of each.

A module of ``tests/conformance`` has one `Text`, adds rows to it section by section, and ends with the test of the rows that have their
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

A row without a check cannot be created. A row whose check is a test of the suite refers to the function object, so that a renamed or
removed test is an error at collection. ``python -m tests.conformance`` writes the document.
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
"""Prefix of ``does`` where zarrfs does not implement a statement, without a decision against it."""

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class SuiteTest:
    """A test of the suite, with all its parameters. Raises TypeError for an object that is not a test."""

    test: FunctionType

    def __post_init__(self) -> None:
        # An inherited method of a suite is a test, as is a function of a module.
        if not inspect.isfunction(self.test) or not self.test.__name__.startswith("test_"):
            raise TypeError(f"{self.test!r} is not a test function")

    @property
    def name(self) -> str:
        """``tests/dialects/test_v2.py::test_x``."""
        file = Path(inspect.unwrap(self.test).__code__.co_filename).resolve().relative_to(_ROOT)
        return "::".join((file.as_posix(), *self.test.__qualname__.split(".")))


Check = Callable[[], object]


@dataclass(frozen=True)
class Statement:
    """One statement.

    ``text`` is the shortened statement, ``does`` the behaviour of zarrfs. ``check`` raises if the behaviour differs, or is a test of the
    suite that does so."""

    number: str
    section: str
    text: str
    does: str
    check: Check | SuiteTest
    marks: tuple[pytest.MarkDecorator, ...] = ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w-]+-\d+\.\d\d", self.number) or not self.section or not self.text or not self.does:
            raise ValueError(f"statement {self.number!r}: number, section, text and behaviour are required")
        if isinstance(self.check, SuiteTest):
            return
        if not callable(self.check) or isinstance(self.check, type):
            raise TypeError(f"statement {self.number}: {self.check!r} is not a check")
        if any(each.default is each.empty for each in inspect.signature(self.check).parameters.values()):
            raise TypeError(f"statement {self.number}: its check takes no arguments")

    @property
    def test(self) -> str:
        """The name of the test in the document."""
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
        """Return the same text for a further module."""
        return Text(self.name, self.title)

    def section(self, number: str, title: str) -> None:
        """Begin the section with this title; its statements are ``number``.01 and on."""
        if number in {each.number.removeprefix(f"{self.name}-").partition(".")[0] for each in self.statements}:
            raise ValueError(f"{self.name}: section {number} exists")
        self._section, self._count = (number, title), 0

    def row(self, text: str, check: Check | SuiteTest, does: str = AS_STATED, *, logs: str = "") -> None:
        """Add a statement; ``logs`` matches the log lines permitted during its check."""
        self._count += 1
        number, title = self._section
        marks = (pytest.mark.logs(logs),) if logs else ()
        self.statements.append(Statement(f"{self.name}-{number}.{self._count:02}", title, text, does, check, marks))

    def rule(self, text: str, does: str = AS_STATED, *, logs: str = "") -> Callable[[Check], Check]:
        """Return a decorator that adds a row with the function as its check."""

        def add(check: Check) -> Check:
            self.row(text, check, does, logs=logs)
            return check

        return add

    def tested(self, text: str, test: Any, does: str = AS_STATED) -> None:
        """Add a row whose check is a test of the suite."""
        self.row(text, SuiteTest(test), does)

    @property
    def own(self) -> pytest.MarkDecorator:
        """Parametrizes a test by the statements that have their own check, with their numbers as ids."""
        carrying = [each for each in self.statements if not isinstance(each.check, SuiteTest)]
        return pytest.mark.parametrize("statement", [pytest.param(each, id=each.number, marks=each.marks) for each in carrying])


def rendered(texts: list[Text]) -> str:
    """Return the document."""
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
                lines += ["", f"### {section}", "", "| no. | statement | zarrfs | test |", "|---|---|---|---|"]
            number = each.number.removeprefix(f"{text.name}-")
            cells = (number, each.text, each.does, f"`{each.test}`")
            lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _counts(texts: list[Text]) -> Iterator[str]:
    yield "| specification | statements | as stated | otherwise, with the reason | not yet |"
    yield "|---|---|---|---|---|"
    rows: dict[str, list[Statement]] = {}
    for text in texts:
        rows.setdefault(text.title, []).extend(text.statements)
    for title, statements in [*rows.items(), ("all", [each for text in texts for each in text.statements])]:
        stated = sum(each.does.startswith(AS_STATED) for each in statements)
        not_yet = sum(each.does.startswith(NOT_YET) for each in statements)
        yield f"| {title} | {len(statements)} | {stated} | {len(statements) - stated - not_yet} | {not_yet} |"


_INTRODUCTION = """\
# Conformance to the Zarr specifications

Each line is one statement of a specification, shortened: a property of a store, or the behaviour of an implementation. The column
"zarrfs" is "as stated", or describes the behaviour of zarrfs and the reason. SEMANTICS.md describes the guarantees to users.

The last column names the test. A number is the id of a check in `tests/conformance/` (`pytest tests/conformance -k v2-3.04` runs
that one); a path is a test of the suite. `python -m tests.conformance` renders this page from the table that those tests run. The
page therefore contains no line without a test, and a test fails if the page differs from the table.

| term | meaning |
|---|---|
| (no statement) | the specification leaves this open, and zarrfs decides it |
| refused | the node is listed with the reason, in the views as `NAME.unsupported.txt`; its neighbours are shown |
| a quirk | an accepted deviation from the specification; `zarrfs info STORE NODE` lists the quirks of a node |
| the software | existing implementations, as opposed to the specification |
"""
