from __future__ import annotations

import ast
import importlib
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from zarrfs import __version__

REPOSITORY = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
SCRIPTS = ("scripts/setup.sh", "demo/run.sh", ".ci/run")


def test_all_is_every_extra() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert re.fullmatch(r"zarrfs\[(.*)\]", extras["all"][0])[1].split(",") == sorted(extras.keys() - {"all"})  # type: ignore[index]


def test_every_library_that_is_imported_is_a_declared_dependency() -> None:
    trees = (ast.walk(ast.parse(path.read_text())) for path in (REPOSITORY / "zarrfs").rglob("*.py"))
    imported = set()
    for node in (node for tree in trees for node in tree):
        match node:
            case ast.Import(names=names):
                imported |= {alias.name.split(".")[0] for alias in names}
            case ast.ImportFrom(module=str(module), level=0):
                imported.add(module.split(".")[0])
    extras = PROJECT["project"]["optional-dependencies"].values()
    declared = [*PROJECT["project"]["dependencies"], *(requirement for extra in extras for requirement in extra)]
    names = {re.split(r"[ \[<>=]", requirement)[0].replace("-", "_") for requirement in declared}
    assert imported - names - sys.stdlib_module_names == set()


def test_the_command_exists() -> None:
    module, function = PROJECT["project"]["scripts"]["zarrfs"].split(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_the_installed_version_is_this_one() -> None:
    assert importlib.metadata.version("zarrfs") == __version__


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_can_be_run(script: str) -> None:
    assert os.access(REPOSITORY / script, os.X_OK)
    subprocess.run(["bash", "-n", script], cwd=REPOSITORY, check=True)


def test_the_make_targets_of_the_readme_exist() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    named = set(re.findall(r"^    \$ make (\w+)", (REPOSITORY / "README.md").read_text(), re.MULTILINE))
    assert named == {"demo", "test"}
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in named)


def test_the_readme_names_every_system_package_that_is_installed() -> None:
    setup = (REPOSITORY / "scripts/setup.sh").read_text()
    packages = {name for names in re.findall(r"missing\+=\(([^)$]*)\)", setup) for name in names.split()}
    programs = re.search(r"for program in ([a-z0-9 ]+); do", setup)
    assert programs is not None
    packages.update(programs[1].split())
    readme = (REPOSITORY / "README.md").read_text()
    assert all(package in readme for package in packages)


def test_the_readme_names_every_extra_and_exit_code() -> None:
    from zarrfs.command.exit_codes import EXIT_CODES

    readme = (REPOSITORY / "README.md").read_text()
    assert all(f"| `{extra}` |" in readme for extra in PROJECT["project"]["optional-dependencies"])
    assert all(f"| {code} |" in readme for code in {0, *EXIT_CODES.values()})


def test_the_example_store_is_small() -> None:
    files = [path for path in (REPOSITORY / "demo/example.zarr").rglob("*") if path.is_file()]
    assert 10 <= len(files) <= 50
    assert sum(path.stat().st_size for path in files) < 200_000
