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
#: The packages that each package, or each module beside them, may import.
MAY_IMPORT = {
    "plugin": {"modes", "report", "run", "tuners", "workers", "cache", "devices"},
    "modes": {"production", "report", "tuners", "run", "workers", "cache", "devices"},
    "report": {"run", "cache"},
    # tuners: XLA's own files are converted. modes: the gate judges the races of many processes.
    "cli": {"modes", "production", "report", "run", "cache", "tuners", "__version__"},
    "production": {"tuners", "run", "cache", "devices"},
    "tuners": {"run", "workers", "cache", "devices"},
    "run": {"workers", "cache", "devices"},
    "workers": {"cache", "devices"},
    "devices": {"cache"},
    "cache": set(),
    # Names that other packages import, with the fixtures for the tests of their adapters.
    "__init__": {"production", "tuners", "run", "cache"},
    "adapters": {"tuners", "run", "workers", "cache", "devices"},
    "testing": {"tuners", "run", "workers", "cache", "devices"},
}
IMPORT_PYTEST = {"plugin", "testing"}
#: The names of modes/ that other rooms import; all else there belongs to a single mode.
NAMES_OF_MODES = {"MODES", "Option", "ModeRow"}


#: The names of classes that stand several times: each tuner has an adapter, as tuners/protocol.py says.
NAMES_BEHIND_A_PROTOCOL = {"Adapter"}


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("room", sorted({path.relative_to(ROOT).parts[0] for path in ROOT.rglob("*.py")}))
def test_each_package_imports_only_packages_of_lower_layers(room: str) -> None:
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


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions and imports for type checkers count, too: a reader of the module needs them all."""
    file_by_module: dict[str, Path] = {}
    for file in ROOT.rglob("*.py"):
        module = ".".join(file.relative_to(ROOT.parent).with_suffix("").parts)
        file_by_module[module.removesuffix(".__init__")] = file
    graph: dict[str, set[str]] = {}
    for module, file in file_by_module.items():
        graph[module] = set()
        for name in imports_of(file):
            imported = name if name in file_by_module else name.rpartition(".")[0]
            if imported in file_by_module and imported != module:
                graph[module].add(imported)
    TopologicalSorter(graph).prepare()  # raises CycleError


@pytest.mark.parametrize(("tuner", "private"), [("triton", r"triton\.\w"), ("xla", r"jax\._src")])
def test_only_internals_modules_use_private_triton_or_jax_names(tuner: str, private: str) -> None:
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


def test_only_classes_of_the_same_protocol_have_the_same_name() -> None:
    files_by_class: dict[str, list[str]] = {}
    for file in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                files_by_class.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    shared = {name: files for name, files in files_by_class.items() if len(files) > 1}
    assert shared.keys() == NAMES_BEHIND_A_PROTOCOL, shared
