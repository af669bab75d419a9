"""Imports run one way, and only what pytest calls imports it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import pytest_autotune

ROOT = Path(pytest_autotune.__file__).parent
#: What each room, or module beside the rooms, may import of the others.
MAY_IMPORT = {
    "plugin": {"modes", "report", "run", "tuners", "workers", "cache", "devices"},
    "modes": {"production", "report", "tuners", "run", "workers", "cache", "devices"},
    "report": {"run", "cache"},
    "cli": {"production", "report", "run", "cache", "tuners", "__version__"},  # tuners: XLA's own files are converted
    "production": {"tuners", "run", "cache", "devices"},
    "tuners": {"run", "workers", "cache", "devices"},
    "run": {"workers", "cache", "devices"},
    "workers": {"cache", "devices"},
    "devices": {"cache"},
    "cache": set(),
    # What others import: names of our own, the fixtures of their adapters' tests included.
    "__init__": {"production", "tuners", "cache"},
    "helion_backend": {"cache"},
    "adapters": {"tuners", "run", "workers", "cache", "devices"},
    "testing": {"tuners", "run", "workers", "cache", "devices"},
}
IMPORT_PYTEST = {"plugin", "testing"}
#: The names of modes/ that other rooms import; all else there belongs to a single mode.
NAMES_OF_MODES = {"MODES", "Option", "Registered"}


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("room", sorted({path.relative_to(ROOT).parts[0] for path in ROOT.rglob("*.py")}))
def test_imports_run_one_way(room: str) -> None:
    path = ROOT / room
    room = path.stem
    for file in path.rglob("*.py") if path.is_dir() else [path]:
        for name in imports_of(file):
            package, _, rest = name.partition(".")
            if package == "pytest_autotune":
                assert rest.partition(".")[0] in {room} | MAY_IMPORT[room], f"{file} imports {name}"
                is_a_mode = rest.startswith("modes.") and rest.partition(".")[2] not in NAMES_OF_MODES
                assert room == "modes" or not is_a_mode, f"{file} names a mode, which may be deleted: {name}"
            elif package in ("pytest", "_pytest"):
                assert room in IMPORT_PYTEST, f"{file} imports {name}"


def test_no_module_imports_itself_by_way_of_others() -> None:
    files = {".".join(file.relative_to(ROOT.parent).with_suffix("").parts): file for file in ROOT.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): file for name, file in files.items()}
    graph = {
        name: {found if found in modules else found.rpartition(".")[0] for found in imported_at_once(file)} - {name}
        for name, file in modules.items()
    }
    TopologicalSorter(graph).prepare()  # raises CycleError


def imported_at_once(path: Path) -> Iterator[str]:
    """What is imported with a module: not what a function of it imports, nor what only type checkers read."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(("tuner", "private"), [("triton", r"triton\.\w"), ("xla", r"jax\._src")])
def test_only_internals_name_what_is_inside_a_library(tuner: str, private: str) -> None:
    room = ROOT / "tuners" / tuner
    naming = [file for file in room.rglob("*.py") if any(re.match(private, text) for text in texts_of(file))]
    assert {file.relative_to(room).parts[0].removesuffix(".py") for file in naming} == {"internals"}


def texts_of(path: Path) -> Iterator[str]:
    """The text constants of a module, without its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value
