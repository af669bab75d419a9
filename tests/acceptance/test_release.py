"""A release, as the workflow builds and checks it: the scripts of .ci/, on this working tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.skipif(
    not (shutil.which("bash") and (REPOSITORY / ".git").exists()), reason="needs bash and a git checkout"
)


def run(*command: str | Path, status: int = 0, **environment: str) -> str:
    """Run a script of the repository and return what it printed."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "PYTEST_"))}
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**variables, "PYTHON": sys.executable, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == status, done.stdout
    return done.stdout


@pytest.mark.index
@pytest.mark.nightly
def test_first_minute_of_the_readme_works_with_the_built_wheel(tmp_path: Path) -> None:
    """The wheel is built from the sdist. The first minute has an environment of its own and 120 seconds."""
    run(".ci/build", tmp_path / "dist")
    assert sorted(path.suffix for path in (tmp_path / "dist").iterdir()) == [".gz", ".whl"]
    printed = run(sys.executable, ".ci/first_minute.py", tmp_path / "dist")

    assert "the README's first minute ran" in printed


def test_a_release_build_fails_if_the_git_tag_is_not_its_version(tmp_path: Path) -> None:
    printed = run(".ci/build", tmp_path / "dist", status=1, GITHUB_REF_TYPE="tag", GITHUB_REF_NAME="v999.0")

    assert printed.startswith("tag v999.0: the version in pytest_autotune/__init__.py is ")
    assert not (tmp_path / "dist").exists()


def test_release_notes_are_the_dated_section_of_the_changelog(tmp_path: Path) -> None:
    """Only a section with a date is one of a release. ``gh`` is a script that prints its arguments."""
    shutil.copytree(REPOSITORY / ".ci", tmp_path / ".ci")
    changelog = "# Changelog\n\n## [0.2.0] - unreleased\n\n- New.\n\n## [0.1.0] - 2026-12-01\n\n- Old.\n"
    (tmp_path / "CHANGELOG.md").write_text(changelog)
    (tmp_path / "gh").write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    (tmp_path / "gh").chmod(0o755)
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "a.whl").touch()
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    release = tmp_path / ".ci" / "release"

    printed = run(release, tmp_path / "dist", GITHUB_REF_NAME="v0.1.0", PATH=path)
    assert "<--notes><- Old.>" in printed
    assert f"<{tmp_path / 'dist' / 'a.whl'}>" in printed
    printed = run(release, tmp_path / "dist", GITHUB_REF_NAME="v0.2.0", PATH=path, status=1)
    assert printed == "CHANGELOG.md: no section '## [0.2.0] - YYYY-MM-DD' with text\n"
