"""The workflows of docs/ci.md, as far as they can be run without GitHub: their own lines, in bash, with real git."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_autotune.cache import stores
from tests.conftest import REPOSITORY, TOY_TUNER

pytestmark = pytest.mark.skipif(not (shutil.which("git") and shutil.which("bash")), reason="needs git and bash")

#: What pytest-split does, as far as the workflows ask for it.
SPLIT = """
def pytest_addoption(parser):
    parser.addoption("--splits", type=int)
    parser.addoption("--group", type=int)

def pytest_collection_modifyitems(config, items):
    if config.getoption("splits"):
        items[:] = items[config.getoption("group") - 1::config.getoption("splits")]
"""
CACHE = "tests/autotune.textproto"


class GitHub:
    """Runs jobs: each in a clone of its own, with artefacts between them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.origin = folder / "origin.git"
        self.artefacts = folder / "artefacts"
        commands = folder / "bin"
        commands.mkdir()
        for name, module in (("pytest", "pytest"), ("pytest-autotune", "pytest_autotune.cli")):
            (commands / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
            (commands / name).chmod(0o755)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "-ppytest_autotune.plugin",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GITHUB_ACTIONS": "true",
            "TOY_LOG": str(folder / "tunings.log"),
        }
        self.run("git init -q --bare -b main origin.git")

    def run(self, script: str, where: Path | None = None, status: int = 0, **more: str) -> str:
        """Run a script as GitHub does and return what it printed."""
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", script],
            cwd=where or self.folder,
            env={**self.environment, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        assert done.returncode == status, done.stdout
        return done.stdout

    def job(self, job: Mapping[str, Any], status: int = 0, **matrix: object) -> str:
        """Run the steps of one job; its last script but those that always run ends with ``status``."""
        where = self.folder / "runner"
        shutil.rmtree(where, ignore_errors=True)
        printed = ""
        for step in job["steps"]:
            step = yaml.safe_load(self._filled(yaml.safe_dump(step, width=10**6), matrix))
            arguments = step.get("with", {})
            action = step.get("uses", "")
            if "run" in step:
                if not step["run"].startswith("pip install "):
                    fails = status if step["run"].startswith("pytest ") else 0
                    printed += self.run(step["run"], where, fails, GITHUB_WORKSPACE=str(where))
            elif action.startswith("actions/checkout@"):
                if "repository" not in arguments:
                    self.run(f"git clone -q {self.origin} {where}")
            elif action.startswith("actions/upload-artifact@"):
                kept = self.artefacts / arguments["name"]
                kept.mkdir(parents=True, exist_ok=True)
                for file in where.glob(arguments["path"]):
                    shutil.copy(file, kept)
            elif action.startswith("actions/download-artifact@"):
                assert arguments["merge-multiple"]
                for file in [file for kept in self.artefacts.glob(arguments["pattern"]) for file in kept.iterdir()]:
                    shutil.copy(file, where)
            else:
                raise AssertionError(f"what is {step}?")
        return printed

    @staticmethod
    def _filled(text: str, matrix: Mapping[str, object]) -> str:
        return re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda found: str(matrix[found[1]]), text)


def workflow(name: str) -> dict[str, Any]:
    """The jobs of a workflow of the page, by its name."""
    page = (REPOSITORY / "docs/ci.md").read_text(encoding="utf-8")
    found = [yaml.safe_load(example) for example in re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)]
    return next(one["jobs"] for one in found if one.get("name") == name)  # type: ignore[no-any-return]


def test_shards_are_judged_a_bot_merges_and_commits_their_updates_and_then_they_pass(tmp_path: Path) -> None:
    github = GitHub(tmp_path)
    author = tmp_path / "author"
    github.run("git clone -q origin.git author; cd author; git config user.name me; git config user.email me@b.invalid")
    (author / "tests").mkdir()
    (author / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    (author / "conftest.py").write_text(TOY_TUNER + SPLIT)
    test = "def test_{0}(tune):\n    tune('lib.op', N='{0}', source='{1}')\n"
    suite = author / "tests" / "test_op.py"
    suite.write_text("".join(test.format(name, "one") for name in ("a", "b", "c", "d")))
    github.run(f"pytest -q --autotune-dump={CACHE}; git add . ; git commit -qm one; git push -q origin HEAD", author)
    # "a" goes, "b" changes, "e" comes; the first shard has b and d, the second c and e.
    kept = [test.format(name, "two" if name == "b" else "one") for name in ("b", "c", "d", "e")]
    suite.write_text("".join(kept))
    github.run("git commit -qam two; git push -q origin HEAD", author)
    tests, update = workflow("gpu tests in shards"), workflow("update the autotuning cache")
    groups = tests["test"]["strategy"]["matrix"]["group"]

    stale = github.job(tests["test"], status=1, group=1)
    assert "::error file=tests/test_op.py,line=1,title=autotune cache%3A stale::STALE toy:lib.op (N=b)" in stale

    for group in groups:
        github.job(update["tune"], group=group)
    github.job(update["commit"])
    log = github.run("git log --format='%an: %s' main", github.origin)
    assert log.splitlines()[0] == "github-actions[bot]: Update the autotuning cache"
    github.run("git pull -q origin main", author)
    entries = stores.read_cache(str(author / CACHE)).entries
    assert [entry.problem.key[0].value for entry in entries] == ["b", "c", "d", "e"]

    shutil.rmtree(github.artefacts)
    for group in groups:
        github.job(tests["test"], group=group)
    assert "0 entries would be dropped, 4 kept" in github.job(tests["unused"])
    assert {path.name for path in (github.artefacts / "autotune-1").iterdir()} == {"autotune-1.html", "autotune-1.json"}

    github.job(update["commit"] | {"steps": update["commit"]["steps"][:3] + update["commit"]["steps"][-1:]})
    assert github.run("git log --format='%an: %s' main", github.origin) == log, "nothing to commit is no error"
