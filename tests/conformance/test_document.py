"""docs/CONFORMANCE.md equals the rendered table, and the table enforces its requirements on rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.conformance.document import DOCUMENT, MODULES, TEXTS, page
from tests.support.statements import NOT_YET, Statement, SuiteTest, Text


def test_the_document_is_the_rendered_table() -> None:
    """`python -m tests.conformance` writes the document."""
    assert DOCUMENT.read_text() == page()


def test_every_module_is_in_the_document() -> None:
    modules = {path.stem for path in Path(__file__).parent.glob("test_v*.py")}
    assert set(MODULES) == modules


def test_no_number_is_given_twice() -> None:
    counts = Counter(each.number for text in TEXTS for each in text.statements)
    assert [number for number, count in counts.items() if count > 1] == []


def test_a_statement_cannot_be_made_without_a_check() -> None:
    def check(of: str) -> None:
        del of

    for none in (None, "test_v2", check, Statement):
        with pytest.raises(TypeError):
            Text("v9", "Version 9", _section=("1", "Storage")).row("a statement", none)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not a test function"):
        SuiteTest(check)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="number"):
        Statement("v9-1", "Storage", "a statement", NOT_YET, check)
