"""The content of docs/CONFORMANCE.md: the specifications in its order, and the test suites of other projects; its path."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tests.outside import table
from tests.support.statements import Text, rendered

DOCUMENT = Path(__file__).parents[2] / "docs" / "CONFORMANCE.md"
MODULES = """
    test_v0 test_v1
    test_v2 test_v2_hierarchies
    test_v3_2019
    test_v3_2022 test_v3_2022_storage test_v3_2022_extensions
    test_v3 test_v3_types test_v3_codecs test_v3_stores
""".split()
TEXTS: list[Text] = [import_module(f"{__package__}.{name}").TEXT for name in MODULES]


def page() -> str:
    """Return the document."""
    return rendered(TEXTS) + table.rendered()
