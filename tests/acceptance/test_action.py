"""The scripts of action.yml, in bash, with real git and an interface of GitHub that is made up."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.test_ci_recipes import CACHE, GitHub
from tests.conftest import REPOSITORY, TOY_TUNER
from tests.reasons import too_many_misses

pytestmark = pytest.mark.skipif(not (shutil.which("git") and shutil.which("bash")), reason="needs git and bash")

TEST = "def test_{0}(tune):\n    tune('lib.op', N='{0}')\n"


class Comments(ThreadingHTTPServer):
    """Keeps the comments of one pull request, as GitHub's interface does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.bodies: list[str] = []
        self.is_readonly = False


class Handler(BaseHTTPRequestHandler):
    """Answers requests for comments."""

    server: Comments

    def answer(self, status: int, content: Any) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def do_GET(self) -> None:
        listed = []
        if self.path.endswith("page=1"):
            listed = [{"id": index, "body": body} for index, body in enumerate(self.server.bodies)]
        self.answer(200, listed)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["body"]
        if self.server.is_readonly:
            self.answer(403, {"message": "Resource not accessible by integration"})
        elif self.command == "PATCH":
            self.server.bodies[int(self.path.rpartition("/")[2])] = body
            self.answer(200, {})
        else:
            self.server.bodies.append(body)
            self.answer(201, {})

    do_PATCH = do_POST

    def log_message(self, *arguments: object) -> None:
        """Write nothing."""


@pytest.fixture
def comments() -> Iterator[Comments]:
    server = Comments()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


class Job:
    """A checkout of a suite with a cache, and the steps of the action in it."""

    def __init__(self, folder: Path) -> None:
        self.github = GitHub(folder)
        self.checkout = folder / "checkout"
        self.summary = folder / "summary.md"
        self.github.run(
            "git clone -q origin.git checkout; cd checkout; git config user.name me; git config user.email me@b.invalid"
        )
        (self.checkout / "tests").mkdir()
        (self.checkout / "conftest.py").write_text(TOY_TUNER)
        (self.checkout / "pytest.ini").write_text("[pytest]\n")
        self.write("a", "b")
        self.update()

    def write(self, *names: str) -> None:
        for name in names:
            (self.checkout / "tests" / f"test_{name}.py").write_text(TEST.format(name))

    def update(self) -> str:
        """Dump the cache, commit, and return the commit."""
        self.github.run(f"pytest -q --autotune-dump={CACHE}; git add .; git commit -qm x; git push -q", self.checkout)
        return self.github.run("git rev-parse HEAD", self.checkout).strip()

    def step(self, script: str, status: int = 0, **environment: str) -> str:
        """Run a step of the action that runs a script of this name."""
        action = yaml.safe_load((REPOSITORY / "action.yml").read_text(encoding="utf-8"))
        (command,) = [step["run"] for step in action["runs"]["steps"] if script in step.get("run", "")]
        return self.github.run(
            command,
            self.checkout,
            status,
            GITHUB_ACTION_PATH=str(REPOSITORY),
            GITHUB_WORKSPACE=str(self.checkout),
            GITHUB_OUTPUT=os.devnull,
            GITHUB_STEP_SUMMARY=str(self.summary),
            RUNNER_TEMP=str(self.github.folder),
            CACHE=CACHE,
            **environment,
        )

    def comment(self, comments: Comments, base: str) -> str:
        return self.step(
            "comment",
            BASE=base,
            NUMBER="7",
            TOKEN="secret",
            PYTHON=sys.executable,
            GITHUB_REPOSITORY="o/r",
            GITHUB_API_URL=comments.url,
        )


def test_the_action_fails_at_the_first_pytest_run_with_a_miss(tmp_path: Path) -> None:
    job = Job(tmp_path)
    test = {"OPTIONS": "--autotune-max-misses=0", "NAME": "1"}

    printed = job.step("test", RUN="pytest tests/test_a.py; cd tests; pytest test_b.py", **test)
    assert printed.count("1 hit") == 2
    reports = tmp_path / "autotune-reports"
    assert [path.name for path in reports.glob("*.html")] == ["autotune-1.html"]
    assert len(list((reports / "1").glob("*.json"))) == 2

    job.write("c")
    printed = job.step("test", status=1, RUN="for name in a c b; do pytest tests/test_$name.py; done", **test)
    assert too_many_misses(1, "0") in printed
    assert "test_b.py" not in printed


def test_a_second_run_of_the_action_edits_its_first_pr_comment(tmp_path: Path, comments: Comments) -> None:
    job = Job(tmp_path)
    base = job.github.run("git rev-parse HEAD", job.checkout).strip()
    assert "no comment: the cache does not change" in job.comment(comments, base)

    job.write("c")
    job.update()
    job.comment(comments, base)
    (first,) = comments.bodies
    assert first.startswith(f"<!-- pytest-autotune: {CACHE} -->\n")
    assert "1 added" in first
    assert "1 added" in job.summary.read_text()

    job.write("d")
    base = job.update()
    job.comment(comments, base)
    (last,) = comments.bodies
    assert "no difference" in last


def test_if_the_action_may_not_comment_it_prints_a_notice(tmp_path: Path, comments: Comments) -> None:
    job = Job(tmp_path)
    base = job.github.run("git rev-parse HEAD", job.checkout).strip()
    job.write("c")
    job.update()
    comments.is_readonly = True

    printed = job.comment(comments, base)

    assert "::notice title=pytest-autotune::no comment was posted: GitHub answers 403" in printed
    assert "1 added" in job.summary.read_text()
    comments.server_close()
    assert "no comment was posted" in job.comment(comments, base)
    assert "cannot be fetched" in job.comment(comments, "0" * 40)
