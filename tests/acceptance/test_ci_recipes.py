"""The workflows of docs/ci.md, as far as they can be run without GitHub: their own lines, in bash, with real git."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_autotune.cache import stores
from tests import forked_workers
from tests.conftest import REPOSITORY, TOY_TUNER
from tests.reasons import too_many_misses

pytestmark = pytest.mark.skipif(not (shutil.which("git") and shutil.which("bash")), reason="needs git and bash")

#: A stand-in for pytest-split, as far as the workflows use it.
SPLIT = """
def pytest_addoption(parser):
    parser.addoption("--splits", type=int)
    parser.addoption("--group", type=int)

def pytest_collection_modifyitems(config, items):
    if config.getoption("splits"):
        items[:] = items[config.getoption("group") - 1::config.getoption("splits")]
"""
CACHE = "tests/autotune.textproto"


#: A machine whose tests are skipped, because it has lost its GPU; and a process that is killed.
FAULTS = """
@pytest.fixture(autouse=True)
def machine():
    if os.environ.get("GPU_IS_LOST"):
        pytest.skip("no GPU")
    if os.environ.get("IS_KILLED"):
        os._exit(137)
"""
LOST = {"GPU_IS_LOST": "1", "CUDA_VISIBLE_DEVICES": ""}


class GitHub:
    """Runs jobs: each in a clone of its own, with artefacts between them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.origin = folder / "origin.git"
        self.artefacts = folder / "artefacts"
        commands = folder / "bin"
        commands.mkdir()
        self.fork_server = forked_workers.write_commands(commands)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "-ppytest_autotune.plugin",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GITHUB_ACTIONS": "true",
            "GITHUB_RUN_ID": "7",
            "GITHUB_RUN_ATTEMPT": "1",
            "TOY_LOG": str(folder / "tunings.log"),
            "FORK_SERVER": str(self.fork_server),
        }
        # These processes run inside a test, and would write no reports.
        self.environment.pop("PYTEST_CURRENT_TEST", None)
        self.run("git init -q --bare -b main origin.git")

    def run(self, script: str, where: Path | None = None, status: int = 0, **variables: str) -> str:
        """Run a script as GitHub does and return what it printed."""
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", script],
            cwd=where or self.folder,
            env={**self.environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            pass_fds=[self.fork_server],
        )
        assert done.returncode == status, done.stdout
        return done.stdout

    def job(
        self, job: Mapping[str, Any], status: int = 0, environment: Mapping[str, str] | None = None, **matrix: object
    ) -> str:
        """Run the steps of one job; its tests, or its gate, end with ``status``.

        :param environment: variables of the machine that runs the job.
        """
        where = self.folder / "runner"
        shutil.rmtree(where, ignore_errors=True)
        printed = ""
        for step in job["steps"]:
            step = yaml.safe_load(self._filled(yaml.safe_dump(step, width=10**6), matrix))
            arguments = step.get("with", {})
            action = step.get("uses", "")
            if "run" in step:
                if not step["run"].startswith("pip install "):
                    fails = status if step["run"].startswith(("pytest ", "pytest-autotune ")) else 0
                    variables = {"GITHUB_WORKSPACE": str(where), **(environment or {})}
                    printed += self.run(step["run"], where, fails, **variables)
            elif action.startswith("actions/checkout@"):
                if "repository" not in arguments:
                    self.run(f"git clone -q {self.origin} {where}")
            elif action.startswith("actions/upload-artifact@"):
                artefact = self.artefacts / arguments["name"]
                if artefact.exists():
                    assert arguments["overwrite"]
                    shutil.rmtree(artefact)
                shutil.copytree(where / arguments["path"], artefact)
            elif action.startswith("actions/download-artifact@"):
                assert arguments["merge-multiple"]
                for artefact in sorted(self.artefacts.glob(arguments["pattern"])):
                    shutil.copytree(artefact, where / arguments["path"], dirs_exist_ok=True)
            else:
                raise AssertionError(f"what is {step}?")
        return printed

    @staticmethod
    def _filled(text: str, matrix: Mapping[str, object]) -> str:
        return re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda match: str(matrix[match[1]]), text)


def workflow(name: str) -> dict[str, Any]:
    """The jobs of a workflow of the page, by its name."""
    page = (REPOSITORY / "docs/ci.md").read_text(encoding="utf-8")
    workflows = [
        yaml.safe_load(example) for example in re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    ]
    return next(content["jobs"] for content in workflows if content.get("name") == name)  # type: ignore[no-any-return]


def test_github_update_commits_the_merged_caches_of_all_shards(tmp_path: Path) -> None:
    """The shards fail before the update and pass after it. A second update has nothing to commit."""
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
    changed_tests = [test.format(name, "two" if name == "b" else "one") for name in ("b", "c", "d", "e")]
    suite.write_text("".join(changed_tests))
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
    assert "passed: within the limit of 0 misses" in github.job(tests["gate"])
    assert sorted(path.suffix for path in (github.artefacts / "autotune-1").iterdir()) == [".html", ".json"]

    github.job(update["commit"] | {"steps": update["commit"]["steps"][:3] + update["commit"]["steps"][-1:]})
    assert github.run("git log --format='%an: %s' main", github.origin) == log, "nothing to commit is no error"


class Project:
    """A repository with a suite of four tests, and a cache that covers it."""

    def __init__(self, github: GitHub) -> None:
        self.github = github
        author = github.folder / "author"
        identity = "git config user.name me; git config user.email me@b.invalid"
        github.run(f"git clone -q origin.git author; cd author; {identity}")
        (author / "tests").mkdir()
        (author / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
        (author / "conftest.py").write_text(TOY_TUNER + SPLIT + FAULTS)
        self.suite = author / "tests" / "test_op.py"
        self.author = author
        self.write("abcd")
        github.run(f"pytest -q --autotune-dump={CACHE}; git add .; git commit -qm one; git push -q origin HEAD", author)

    def write(self, names: str) -> None:
        """Write a test for each problem."""
        test = "def test_{0}(tune):\n    tune('lib.op', N='{0}')\n"
        self.suite.write_text("".join(test.format(name) for name in names))

    def commit(self, names: str) -> None:
        """Commit another suite."""
        self.write(names)
        self.github.run("git commit -qam two; git push -q origin HEAD", self.author)

    @property
    def keys(self) -> list[object]:
        """The keys of the committed cache's entries."""
        self.github.run("git pull -q origin main", self.author)
        return [entry.problem.key[0].value for entry in stores.read_cache(str(self.author / CACHE)).entries]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(GitHub(tmp_path))


def test_sharded_github_run_fails_if_a_job_has_no_gpu_or_report(project: Project) -> None:
    github, jobs = project.github, workflow("gpu tests in shards")
    github.job(jobs["test"], group=1)
    lost = github.job(jobs["test"], status=1, group=2, environment=LOST)
    assert "no test ran a kernel on such a GPU: no GPU is visible" in lost
    github.job(jobs["test"], group=2)
    github.job(jobs["gate"])

    shutil.rmtree(github.artefacts / "autotune-2")
    assert "found 1 report, but --expect=2: some wrote none (did each job start and end?)" in github.job(
        jobs["gate"], status=1
    )

    github.job(jobs["test"], status=137, group=2, environment={"IS_KILLED": "1"})
    assert "the process has not ended" in github.job(jobs["gate"], status=1)

    github.job(jobs["test"], group=2, environment={"GITHUB_RUN_ATTEMPT": "2"})
    github.job(jobs["gate"])

    github.job(jobs["test"], group=2, environment={"GITHUB_RUN_ID": "6"})
    assert "is a report of CI run 6, not of CI run 7" in github.job(jobs["gate"], status=1)

    for group in (1, 2):
        github.job(jobs["test"], status=1, group=group, environment=LOST)
    assert "no process called an autotuned kernel (4 skipped)" in github.job(jobs["gate"], status=1)


def test_sharded_github_run_fails_for_misses_and_unused_entries(project: Project) -> None:
    github, jobs = project.github, workflow("gpu tests in shards")
    project.commit("abc")
    for group in (1, 2):
        github.job(jobs["test"], group=group)
    assert "UNUSED toy:lib.op (N=d)" in github.job(jobs["gate"], status=1)

    project.commit("abcde")
    github.job(jobs["test"], status=1, group=1)
    github.job(jobs["test"], group=2)
    assert too_many_misses(1, "0") in github.job(jobs["gate"], status=1)


def test_github_update_deletes_no_entry_if_a_job_lost_its_gpu(project: Project) -> None:
    github, jobs = project.github, workflow("update the autotuning cache")
    project.commit("abce")
    github.job(jobs["tune"], group=1)
    github.job(jobs["tune"], group=2, environment=LOST)
    printed = github.job(jobs["commit"])
    assert "was skipped, so its tests may need any entry" in printed
    assert project.keys == ["a", "b", "c", "d"]

    github.job(jobs["tune"], group=2)
    github.job(jobs["commit"])
    assert project.keys == ["a", "b", "c", "e"]

    shutil.rmtree(github.artefacts / "autotune-1")
    commit = {"steps": [step for step in jobs["commit"]["steps"] if "git push" not in step.get("run", "")]}
    with pytest.raises(AssertionError, match="found 1 report, but --expect=2"):
        github.job(commit)


class GitLab:
    """Runs the jobs of the page's pipeline: each in a clone of its own, with artefacts between them."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.github = project.github
        page = (REPOSITORY / "docs/ci.md").read_text(encoding="utf-8")
        section = page.split("## GitLab\n")[1]
        examples = re.findall(r"^```yaml\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        self.jobs: dict[str, Any] = yaml.safe_load(examples[0])
        for name in ("GITHUB_ACTIONS", "GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT"):
            del self.github.environment[name]
        self.artefacts = self.github.folder / "gitlab"
        self.job_count = 0

    def run(self, name: str, index: int = 1, status: int = 0, **environment: str) -> str:
        """Run a job; its script ends with ``status``. Its artefacts are kept in any case."""
        job = self.jobs[name]
        where = self.github.folder / "runner"
        shutil.rmtree(where, ignore_errors=True)
        self.github.run(f"git clone -q {self.github.origin} {where}")
        for needed in job.get("needs", ()):
            for artefact in sorted(self.artefacts.glob(f"{needed} *")):
                shutil.copytree(artefact, where, dirs_exist_ok=True)
        self.job_count += 1
        variables = {
            "CI_PIPELINE_ID": "7",
            "CI_JOB_ID": str(self.job_count),
            "CI_JOB_NAME": f"{name} {index}/{job.get('parallel', 1)}",
            "CI_NODE_INDEX": str(index),
            "CI_NODE_TOTAL": str(job.get("parallel", 1)),
            **environment,
        }
        try:
            return self.github.run("\n".join(job["script"]), where, status, **variables)
        finally:
            assert job["artifacts"]["when"] == "always"
            artefact = self.artefacts / f"{name} {index}"
            shutil.rmtree(artefact, ignore_errors=True)
            for path in job["artifacts"].get("paths", ()):
                if (where / path).is_dir():
                    shutil.copytree(where / path, artefact / path)
            assert (where / job["artifacts"]["reports"]["junit"].replace("*", str(index))).exists() or status > 1


def test_gitlab_fails_for_a_lost_gpu_a_miss_or_an_unused_entry(project: Project) -> None:
    gitlab = GitLab(project)
    gitlab.run("test", 1)
    gitlab.run("test", 2)
    gitlab.run("gate")

    gitlab.run("test", 2, status=1, **LOST)
    assert "(2 skipped)" not in gitlab.run("gate", status=1, CI_PIPELINE_ID="8")
    gitlab.run("test", 1, status=1, **LOST)
    assert "no process called an autotuned kernel (4 skipped)" in gitlab.run("gate", status=1)

    gitlab.run("test", 1)
    gitlab.run("test", 2, status=137, IS_KILLED="1")
    assert "the process has not ended" in gitlab.run("gate", status=1)

    gitlab.run("test", 2)
    gitlab.run("gate")
    project.commit("abce")
    gitlab.run("test", 1)
    gitlab.run("test", 2, status=1)
    assert too_many_misses(1, "0") in gitlab.run("gate", status=1)
    project.commit("abc")
    gitlab.run("test", 1)
    gitlab.run("test", 2)
    assert "UNUSED toy:lib.op (N=d)" in gitlab.run("gate", status=1)
