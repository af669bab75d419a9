"""The files of a built wheel, and the public names of the package."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import pytest_autotune

ROOT = Path(__file__).parent.parent


def test_a_built_wheel_has_every_module_of_the_package(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.cfg", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "pytest_autotune", source / "pytest_autotune", ignore=shutil.ignore_patterns("__pycache__"))
    build = "import setuptools.build_meta as b, sys; b.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=source, check=True, capture_output=True)

    (wheel,) = tmp_path.glob("*.whl")
    built = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("pytest_autotune/")}
    modules = {str(path.relative_to(source)) for path in (source / "pytest_autotune").rglob("*.py")}
    assert built >= modules
    assert {"pytest_autotune/py.typed", "pytest_autotune/cache/autotune_cache.proto"} <= built
    assert {f"pytest_autotune/report/html/page.{suffix}" for suffix in ("html", "css", "js")} <= built


def test_every_public_name_of_the_package_can_be_imported() -> None:
    for name in dir(pytest_autotune):
        assert getattr(pytest_autotune, name) is not None or name.startswith("__")
    with pytest.raises(AttributeError, match="nothing"):
        pytest_autotune.nothing  # noqa: B018


def test_every_public_name_is_imported_for_type_checkers() -> None:
    source = Path(pytest_autotune.__file__).read_text()

    assert [name for name in pytest_autotune._PUBLIC if f" {name} as {name}\n" not in source] == []
