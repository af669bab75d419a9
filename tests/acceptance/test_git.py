"""Caches under real git: what merges, what is shown, and what happens where nothing was registered."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_autotune import cli
from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value, Versions
from tests.stores import update_store

H200 = Device("NVIDIA H200", "sm_90", 132)
A100 = Device("NVIDIA A100", "sm_80", 108)

Git = Callable[..., "subprocess.CompletedProcess[str]"]


def entry(m: int, block: int = 32, time_us: float = 10.0, source: str = "s", device: Device = H200) -> Entry:
    return Entry(
        Problem("triton", "lib.add", (Value("M", m),), device),
        (Value("source", source, "digest"),),
        Candidate(params=(Value("BLOCK", block),), time_us=time_us),
    )


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """Return a function that runs git in a new repository, the current folder, without the user's configuration."""
    (tmp_path / "repository").mkdir()
    monkeypatch.chdir(tmp_path / "repository")
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_EDITOR", "true")
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "someone")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "someone@example.com")

    def git(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True)
        assert done.returncode == status, done.stdout + done.stderr
        return done

    git("init", "-q", "-b", "main")
    return git


PATH = "tests/autotune.textproto"


def commit(git: Git, *entries: Entry, path: str = PATH) -> None:
    update_store(stores.open_store(path), lambda now: Cache(entries))
    git("add", "-A")
    git("commit", "-q", "-m", "x")


def branches(git: Git, base: list[Entry], ours: list[Entry], theirs: list[Entry], path: str = PATH) -> None:
    """Commit a cache, and a change of it on each of the branches main and other; main is checked out."""
    commit(git, *base, path=path)
    git("checkout", "-q", "-b", "other")
    commit(git, *theirs, path=path)
    git("checkout", "-q", "main")
    commit(git, *ours, path=path)


def entries_of(path: str = PATH) -> set[Entry]:
    return set(stores.read_cache(path).entries)


@pytest.fixture
def registered(git: Git) -> Git:
    """git, with everything registered for the cache."""
    assert cli.main(["git-setup", PATH]) == 0
    git("add", "-A")
    git("commit", "-q", "-m", "setup")
    return git


BASE = [entry(m) for m in (1, 5, 9)] + [entry(1, device=A100)]


def test_git_merge_keeps_the_entries_that_two_branches_added(registered: Git) -> None:
    """The two branches add their entries at the same place of the file."""
    branches(registered, BASE, [*BASE, entry(2)], [*BASE, entry(3)])

    registered("merge", "other")

    assert entries_of() == {*BASE, entry(2), entry(3)}
    assert registered("status", "--porcelain").stdout == ""


def test_merging_two_tunings_of_a_problem_keeps_the_faster_entry(registered: Git) -> None:
    """Both branches tuned the problem. The merge keeps the entry that a run would keep, and names it."""
    ours, theirs = [entry(5, 64, 9.0), *BASE[2:]], [entry(5, 16, 8.0), *BASE[2:]]
    branches(registered, BASE, ours, theirs)

    message = registered("merge", "other").stderr

    assert entries_of() == {entry(5, 16, 8.0), *BASE[2:]}
    assert f"{PATH}: 1 problem was tuned more than once; of each, one entry was kept:" in message
    assert f"{PATH}:     kept theirs: BLOCK=16, 8 us" in message


def test_git_rebase_of_two_cache_commits_finds_no_conflict(registered: Git) -> None:
    branches(registered, BASE, [entry(1, 64), *BASE[1:], entry(2)], [*BASE, entry(3)])
    registered("checkout", "-q", "other")
    commit(registered, *BASE, entry(3), entry(4))

    registered("rebase", "main")

    assert entries_of() == {entry(1, 64), *BASE[1:], entry(2), entry(3), entry(4)}
    assert registered("log", "--oneline", "main..other").stdout.count("\n") == 2


def test_git_merge_removes_an_entry_that_one_branch_has_removed(registered: Git) -> None:
    branches(registered, BASE, BASE[1:], [*BASE, entry(3)])

    message = registered("merge", "other").stderr

    assert entries_of() == {*BASE[1:], entry(3)}
    assert "1 entry left out, because one side removed or replaced them:" in message


@pytest.mark.parametrize("path", ["tests/autotune.pb", "tests/a b[1].json", "tests/autotune.yaml", "tests/cache/"])
def test_git_merges_every_file_format_of_a_cache(git: Git, path: str) -> None:
    assert cli.main(["git-setup", path]) == 0
    branches(git, BASE, [entry(1, 64), *BASE[1:], entry(2)], [entry(1, 16, 8.0), *BASE[1:], entry(3)], path=path)

    git("merge", "other")

    assert entries_of(path) == {entry(1, 16, 8.0), *BASE[1:], entry(2), entry(3)}


def test_a_cache_with_an_unknown_field_gives_a_merge_conflict(registered: Git, monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch has an unknown field, so git reports a conflict with markers.

    A run that reads the file names a remedy.
    """
    commit(registered, *BASE)
    registered("checkout", "-q", "-b", "other")
    commit(registered, *BASE, entry(10))
    registered("checkout", "-q", "main")
    commit(registered, *BASE, entry(11))
    Path(PATH).write_text(Path(PATH).read_text() + "something: new\n")
    registered("commit", "-q", "-a", "-m", "newer")

    merge = registered("merge", "other", status=1)

    assert "cannot be merged by entries" in merge.stderr
    assert "upgrade pytest-autotune" in merge.stderr
    assert "CONFLICT" in merge.stdout
    with pytest.raises(CacheError, match="the file has an unresolved merge conflict") as refused:
        stores.read_cache(PATH)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    assert subprocess.run(refused.value.remedy.removeprefix("run: "), shell=True).returncode == 1
    assert registered("ls-files", "--unmerged").stdout, "markers are not added"


def test_git_setup_then_checkout_merge_resolves_a_cache_conflict(git: Git) -> None:
    """Without the driver, git merges lines and reports a conflict.

    After git-setup, `git checkout --merge` resolves the conflict.
    """
    Path(".gitattributes").write_text(f"/{PATH} merge=pytest-autotune diff=pytest-autotune\n")
    ours, theirs = [*BASE[1:], entry(5, 64, 9.0)], [*BASE[1:], entry(5, 16, 8.0)]
    branches(git, BASE, ours, theirs)

    git("merge", "other", status=1)

    with pytest.raises(CacheError, match="the file has an unresolved merge conflict"):
        stores.read_cache(PATH)
    assert cli.main(["git-setup", PATH]) == 0
    git("checkout", "--merge", "--", PATH)
    assert entries_of() == {*BASE[2:], entry(5, 16, 8.0)}


def test_without_the_merge_driver_git_merges_caches_line_by_line(registered: Git) -> None:
    """The command is no longer installed. Git merges lines and shows plain text."""
    for name in ("merge.pytest-autotune.driver", "diff.pytest-autotune.textconv"):
        value = registered("config", name).stdout.strip()
        registered("config", name, value.replace("pytest-autotune git-", "gone-for-ever git-"))
    many = [entry(m) for m in range(10, 60)]
    branches(registered, many, [entry(1), *many], [*many, entry(99)])

    registered("merge", "other")

    assert entries_of() == {entry(1), *many, entry(99)}
    assert "entries {" in registered("show", "other").stdout


def test_git_diff_shows_a_line_for_each_changed_entry(registered: Git) -> None:
    commit(registered, *BASE)
    other = replace(BASE[1], versions=Versions.parse("triton 3.7.1"), compiled=("divisible by 16",))
    commit(registered, entry(1, 64, 9.0), other, *BASE[2:])

    shown = registered("show", "--format=", "HEAD").stdout

    changed = [line for line in shown.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert changed[0] == "-triton:lib.add (M=1) on nvidia-h200-sm90-132: BLOCK=32, 10 us; source=s"
    assert "+triton:lib.add (M=1) on nvidia-h200-sm90-132: BLOCK=64, 9 us; source=s" in changed
    assert re.fullmatch(r".*; source=s, triton 3.7.1, and more: [0-9a-f]{8}", changed[-1])

    # The text of a newer version is shown unchanged.
    Path(PATH).write_text(Path(PATH).read_text() + "something: new\n")
    registered("commit", "-q", "-a", "-m", "newer")
    assert "+something: new" in registered("show", "--format=", "HEAD").stdout


def test_git_setup_adds_each_line_to_gitattributes_only_once(git: Git) -> None:
    """Without arguments, git-setup only registers the driver."""
    paths = ["a b.pb", PATH, "tests/folder/"]
    Path(".gitattributes").write_bytes(b"*.txt text\r\n*.bin binary")

    assert cli.main(["git-setup", *paths]) == 0
    once = Path(".gitattributes").read_text()
    assert Path(".gitattributes").read_bytes().startswith(b"*.txt text\r\n*.bin binary\n")
    git("config", "--remove-section", "merge.pytest-autotune")
    assert cli.main(["git-setup", PATH]) == cli.main(["git-setup"]) == 0

    attributes = "merge=pytest-autotune diff=pytest-autotune"
    added = f'"/a b.pb" {attributes}\n/{PATH} {attributes}\n/tests/folder/*.textproto {attributes}\n'
    assert Path(".gitattributes").read_text() == once == f"*.txt text\n*.bin binary\n{added}"
    assert "git-merge" in git("config", "merge.pytest-autotune.driver").stdout


def test_the_git_setup_command_prints_the_next_step_to_take(git: Git, capsys: pytest.CaptureFixture[str]) -> None:
    messages = []
    for arguments in ([], [PATH], []):
        assert cli.main(["git-setup", *arguments]) == 0
        messages.append(capsys.readouterr().out.splitlines()[-1].partition("this clone")[2])

    assert messages == ["; .gitattributes names no cache yet (git-setup FILE adds one)", "; commit .gitattributes", ""]


def test_git_setup_warns_of_a_path_that_does_not_exist(git: Git, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["git-setup", "gone.textproto"]) == 0

    assert capsys.readouterr().err == (
        "pytest-autotune: gone.textproto: does not exist yet "
        "(correct the path, or create it with --autotune-dump=gone.textproto)\n"
    )


def test_git_setup_global_edits_gitconfig_and_gitattributes(
    git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command starts in a subfolder."""
    Path("tests").mkdir()
    monkeypatch.chdir("tests")

    assert cli.main(["git-setup", "--global", "autotune.textproto"]) == 0

    assert Path("../.gitattributes").read_text().startswith(f"/{PATH} merge=")
    assert "git-merge" in (tmp_path / "gitconfig").read_text()
    assert git("config", "--local", "--list").stdout.count("pytest-autotune") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/x.pb"], "/x.pb: is not in the repository"),
        (["x"], "has no suffix"),
    ],
)
def test_git_setup_refuses_a_path_outside_the_repository(
    git: Git, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert cli.main(["git-setup", *arguments]) == 4
    assert message in capsys.readouterr().err
    assert not Path(".gitattributes").exists()


def test_setup_refuses_a_gitattributes_link_and_a_multiline_path(
    git: Git, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A .gitattributes that is a link stays as it is. A name with characters of a shell is quoted."""
    elsewhere = tmp_path / "bashrc"
    elsewhere.write_text("mine\n")
    Path(".gitattributes").symlink_to(elsewhere)
    name = "$(touch X).textproto"

    assert cli.main(["git-setup", name]) == 4
    assert ".gitattributes: is a link" in capsys.readouterr().err
    assert elsewhere.read_text() == "mine\n"

    Path(".gitattributes").unlink()
    assert cli.main(["git-setup", name]) == 0
    assert Path(".gitattributes").read_text().startswith('"/$(touch X).textproto" merge=')

    before = Path(".gitattributes").read_text()
    assert cli.main(["git-setup", "a\n* merge=x\n.textproto"]) == 4
    assert "has a line break" in capsys.readouterr().err
    assert Path(".gitattributes").read_text() == before


@pytest.mark.parametrize("empty", ["ours", "theirs"])
def test_merge_fails_if_the_cache_file_of_one_branch_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty: str
) -> None:
    """An empty file does not mean that a branch removed all entries. Our file stays as it is."""
    monkeypatch.chdir(tmp_path)
    for side in ("ancestor", "ours", "theirs"):
        update_store(stores.open_store(f"{side}.textproto"), lambda now: Cache((*BASE, entry(7))))
    Path(f"{empty}.textproto").write_bytes(b"")
    before = Path("ours.textproto").read_bytes()

    sides = [f"{side}.textproto" for side in ("ancestor", "ours", "theirs")]

    assert cli.main(["git-merge", *sides, PATH]) == 1
    assert Path("ours.textproto").read_bytes() == before


def test_git_setup_outside_a_repository_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    assert cli.main(["git-setup", PATH]) == 4
    assert "not a git repository" in capsys.readouterr().err
