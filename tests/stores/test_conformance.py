"""The conformance suite over every registered store, and over one that the test itself writes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.stores.conformance import StoreConformance
from zarrfs import registry

EXAMPLES = [plugin for plugin in registry.plugins("zarrfs.stores") if plugin.example]


class TestRegisteredStores(StoreConformance):
    @pytest.fixture(params=EXAMPLES, ids=lambda plugin: plugin.name)
    def store_url(self, request: pytest.FixtureRequest, tmp_path: Path) -> str:
        url: str = request.param.example(str(tmp_path))
        return url


def test_every_store_that_can_be_written_has_an_example() -> None:
    assert {"memory", "folder"} <= {plugin.name for plugin in EXAMPLES}


@pytest.mark.full_length
def test_one_new_file_is_a_new_store_under_the_whole_suite(tmp_path: Path) -> None:
    """A backend with only the required methods, so that the fallbacks are tested as well."""
    (tmp_path / "shelf.py").write_text(
        textwrap.dedent(
            '''
            """A store in a dictionary."""
            from zarrfs.stores.capabilities import Capabilities
            from zarrfs.stores.base import Store
            from zarrfs.stores.values import KeyStat
            from zarrfs.stores.base import StorePlugin

            class ShelfStore(Store):
                def __init__(self, read_only):
                    self.capabilities = Capabilities(write=not read_only, create_only=False, match=False)
                    self.values = {}
                    self.sets = 0

                async def get(self, key):
                    return self.values[key][0] if key in self.values else None

                async def stat(self, key):
                    return KeyStat(len(self.values[key][0]), None, self.values[key][1]) if key in self.values else None

                async def set(self, key, value, *, expect=None):
                    self._require_writable(key)
                    if expect is not None:
                        raise self._unsupported("set conditionally")
                    self.sets += 1
                    self.values[key] = bytes(value), str(self.sets)
                    return str(self.sets)

                async def erase(self, key):
                    self._require_writable(key)
                    self.values.pop(key, None)

                async def erase_prefix(self, prefix):
                    self._require_writable(prefix)
                    await super().erase_prefix(prefix)

                async def list_dir(self, prefix):
                    seen = {}
                    for key, (value, _) in self.values.items():
                        if key.startswith(prefix):
                            name, slash, _ = key[len(prefix):].partition("/")
                            seen[name, bool(slash)] = 0 if slash else len(value)
                    for (name, is_prefix), size in seen.items():
                        yield name, is_prefix, size, None

            async def _open(location, read_only):
                return ShelfStore(read_only)

            PLUGIN = StorePlugin("shelf", ("shelf",), _open, example=lambda folder: "shelf:")
            '''
        )
    )
    program = f"""
import sys, pytest, zarrfs.stores
zarrfs.stores.__path__.append({str(tmp_path)!r})
arguments = ["-q", "-p", "no:cacheprovider", "-k", "TestRegisteredStores and shelf", {str(Path(__file__))!r}]
sys.exit(pytest.main(arguments))
"""
    root = Path(__file__).parents[2]
    ran = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "passed" in ran.stdout
