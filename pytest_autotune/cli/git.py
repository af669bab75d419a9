"""Commands for git: ``git-setup`` registers the merge driver ``git-merge`` and the view ``git-textconv``.

A merge driver is a program with which git merges the versions of a file. A textconv is a program that prints a file as
text, and ``git diff`` compares these texts. Git needs two settings for each. A line of ``.gitattributes``, which is
committed, names the files and the driver. Git's configuration, which is not committed, has the command of the driver.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.codec import Format, decode, encode, find_format
from pytest_autotune.cache.combine import combine_caches
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import Location
from pytest_autotune.cache.model import Cache, Entry
from pytest_autotune.cache.wording import describe_seconds, join_nonempty
from pytest_autotune.cli.merge import describe_combined
from pytest_autotune.cli.output import FOUND, OK, PATH, describe_choice_and_time, print_lines, refuse_lossy, safe

#: The name of the command, and of the merge driver in git's configuration.
NAME = "pytest-autotune"
#: The attributes of a cache in .gitattributes: the names of its merge driver and its textconv.
_ATTRIBUTES = f"merge={NAME} diff={NAME}"
#: A pattern of .gitattributes that needs no quotes.
_UNQUOTED_PATTERN = re.compile(r"[\w./*\\-]+", re.ASCII)
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")


@click.command("git-setup", short_help="let git merge caches by problem, and show their choices in diffs")
@click.argument("files", metavar="[FILE]...", nargs=-1, type=PATH)
@click.option("--global", "globally", is_flag=True, help="Register for all repositories of this user.")
def setup(files: tuple[str, ...], globally: bool) -> None:
    """Write .gitattributes for the caches FILE..., and register the merge driver in git's configuration.

    Commit .gitattributes. The configuration belongs to this clone: run git-setup once in each other clone, without
    FILE. In a clone without it, git merges and shows the caches line by line, as any other file.
    """
    root = Path(_run_git("rev-parse", "--show-toplevel").removesuffix("\n"))
    attributes_file = root / ".gitattributes"
    # A line is like "/tests/cache.textproto merge=pytest-autotune diff=pytest-autotune".
    attribute_lines = []
    for file in files:
        attribute_lines.append(f"{_build_pattern(file, root)} {_ATTRIBUTES}")
    added_lines = _append_lines(attributes_file, attribute_lines)
    _register(globally)
    owner = "clone"
    if globally:
        owner = "user"
    message = f"the merge driver is registered in the git configuration of this {owner}"
    if added_lines:
        message += "; commit .gitattributes"
    elif not _names_driver(attributes_file):
        message += "; .gitattributes names no cache yet (git-setup FILE adds one)"
    print_lines(f"{NAME}: {safe(line)}" for line in [*added_lines, message])
    for file in files:
        if not os.path.exists(file):
            # Git accepts the line, but it would never apply if the path has a typing error.
            warning = f"{file}: does not exist yet (correct the path, or create it with --autotune-dump={file})"
            print_lines([f"{NAME}: {safe(warning)}"], err=True)


def _names_driver(attributes_file: Path) -> bool:
    """Whether .gitattributes names the merge driver for any file."""
    return attributes_file.exists() and f"merge={NAME}" in attributes_file.read_text(errors="replace")


def _register(globally: bool) -> None:
    """Write the commands of the merge driver and of the textconv into git's configuration.

    :param globally: for all repositories of the user, else for this clone.
    """
    scope = []
    if globally:
        scope = ["--global"]
    program = shlex.quote(_find_program())
    # Git puts paths in place of %O (the ancestor), %A (our version, which gets the result), %B (their version) and %P
    # (the name of the merged file). If the program is gone or refuses a version, git's own merge of lines follows.
    driver = f"{program} git-merge %O %A %B %P || git merge-file -q %A %O %B || exit 1"
    # Git puts the path behind this command, as the argument of the shell function. If the program is gone or cannot
    # read the file, the file's own text follows.
    textconv = f'textconv() {{ {program} git-textconv "$1" 2>/dev/null || cat "$1"; }}; textconv'
    _run_git("config", *scope, f"merge.{NAME}.name", "autotuning caches, entry by entry")
    _run_git("config", *scope, f"merge.{NAME}.driver", driver)
    _run_git("config", *scope, f"diff.{NAME}.textconv", textconv)


def _run_git(*arguments: str) -> str:
    """Run git and return its output.

    :raises CacheError: if git cannot be run, or fails.
    """
    try:
        process = subprocess.run(["git", *arguments], capture_output=True, text=True, errors="surrogateescape")
    except OSError as error:
        raise CacheError("git", f"cannot be run: {error.strerror}") from None
    if process.returncode:
        error_lines = process.stderr.strip().splitlines()
        event = f"ended with exit status {process.returncode}"
        if error_lines:
            event = error_lines[0]
        raise CacheError(f"git {arguments[0]}", event)
    return process.stdout


def _build_pattern(file: str, root: Path) -> str:
    """Return the pattern of .gitattributes for a cache.

    - A file: ``/tests/cache.textproto``.
    - A folder: ``/tests/cache/*.textproto``.
    - A name with a blank or another special character stands in double quotes: ``"/my tests/cache.textproto"``.

    :param file: the path of the cache, as the user typed it.
    :param root: the folder of the repository.
    :raises CacheError: for a path outside the repository, and for a name with a line break: it would add lines.
    """
    path = Path(os.path.realpath(file))
    is_folder = Location.parse(file, Path()).is_folder
    if not is_folder:
        # This call raises an error if the suffix is not that of a cache.
        find_format(path, file)
    try:
        path_below_root = path.relative_to(os.path.realpath(root))
    except ValueError:
        raise CacheError(file, f"is not in the repository {root}") from None
    if _CONTROL_CHARACTER.search(str(path_below_root)):
        raise CacheError(file, "has a line break or another control character in its name", "rename the file")
    parts = list(map(_escape_glob, path_below_root.parts))
    if is_folder:
        parts.append("*.textproto")
    # The first slash stands for the folder of .gitattributes. Without it, the pattern would also match in subfolders.
    pattern = "/" + "/".join(parts)
    if _UNQUOTED_PATTERN.fullmatch(pattern):
        return pattern
    escaped_pattern = pattern.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped_pattern}"'


def _escape_glob(text: str) -> str:
    """Return a pattern that matches only the text itself: special characters of patterns get a backslash in front."""
    return re.sub(r"([*?\[\\])", r"\\\1", text)


def _append_lines(file: Path, lines: Sequence[str]) -> list[str]:
    """Append the lines that a file does not have yet, and return these lines.

    :param lines: without their line breaks.
    :raises CacheError: for a link. Git does not follow it, and a stranger who committed it chose its target.
    """
    if file.is_symlink():
        raise CacheError(str(file), "is a link, which git does not follow", "put a file in its place")
    text = ""
    if file.exists():
        # read_text() would replace the line breaks of Windows.
        text = file.read_bytes().decode(errors="surrogateescape")
    present_lines = text.splitlines()
    if text and not text.endswith("\n"):
        # Without the line break, the first new line would continue the last line.
        text += "\n"
    added_lines = []
    for line in lines:
        if line not in present_lines:
            added_lines.append(line)
            text += f"{line}\n"
    if added_lines:
        stores.OutputFile(str(file)).replace(text.encode(errors="surrogateescape"))
    return added_lines


def _find_program() -> str:
    """Return a command that git can run: the path of this installation's program, else its name.

    It is not ``python -m pytest_autotune.cli``, which would import modules from the folder in which git merges.
    """
    path = Path(sys.executable).with_name(NAME)
    if path.is_file():
        return str(path)
    return NAME


@click.command("git-merge", short_help="merge two versions of a cache; git merge runs this after git-setup")
@click.argument("ancestor")
@click.argument("ours")
@click.argument("theirs")
@click.argument("path")
def merge(ancestor: str, ours: str, theirs: str, path: str) -> int:
    """Merge the files THEIRS and OURS into OURS, as versions of the cache PATH that began with ANCESTOR.

    A change of one side is kept. If both sides have an entry of one problem and fingerprint, the entry that a run would
    keep stays. If a side cannot be read or is empty, OURS stays as it is, and the exit status is 1.
    """
    # ANCESTOR, OURS and THEIRS are temporary files of git. Only PATH has the suffix that tells the format.
    cache_format = find_format(Path(path), path)
    try:
        sides = {
            "ours": _read_version(ours, cache_format, path),
            "theirs": _read_version(theirs, cache_format, path),
        }
        combined = combine_caches(sides, _read_ancestor(ancestor, cache_format, path))
        stores.OutputFile(ours).replace(encode(combined.cache, cache_format))
    except CacheError as error:
        # With this exit status, git leaves the file as a conflict for the user.
        print_lines([f"{NAME}: {safe(path)}: cannot be merged by entries, so git merges its lines: {error}"], err=True)
        return FOUND
    print_lines([f"{safe(path)}: {line}" for line in describe_combined(combined)], err=True)
    return OK


def _read_version(file: str, cache_format: Format, path: str) -> Cache:
    """Read the version of one side.

    :param file: git's temporary file with the version.
    :param path: names the cache in messages.
    :raises CacheError: if the version cannot be read, or has fields that this version of the command would lose.
    """
    return refuse_lossy(decode(stores.read_file(file), cache_format, path))


def _read_ancestor(file: str, cache_format: Format, path: str) -> Cache:
    """Read the version that both sides began with. Git gives an empty file if both sides added the cache.

    :param file: git's temporary file with the version.
    :param path: names the cache in messages.
    """
    data = stores.read_file(file)
    if not data.strip():
        return Cache()
    return decode(data, cache_format, path)


@click.command("git-textconv", short_help="print one line for each entry; git diff runs this after git-setup")
@click.argument("file")
def textconv(file: str) -> None:
    """Print a line for each entry of the cache FILE: the problem, its device, the choice, and the rest in short.

    If any line of the file changes, a line of the output changes, too.
    """
    cache = refuse_lossy(stores.read_cache(file, missing_ok=True))
    entries = sorted(cache.entries, key=lambda entry: entry.sort_key)
    print_lines(map(_describe_entry, entries))


def _describe_entry(entry: Entry) -> str:
    """Return a line about an entry: ``toy:lib.k (M=64) on gpu: BLOCK=64, 7.7 us; source=ab12, triton 3.5``.

    ``git diff`` compares these lines, so if any part of the entry changes, the line must change, too.
    """
    problem = f"{safe(str(entry.problem))} on {safe(entry.problem.device.id)}"
    details = [*map(str, entry.fingerprint), str(entry.versions), entry.label]
    if entry.tuning_seconds:
        details.append(f"{describe_seconds(entry.tuning_seconds)} of tuning")
    # These fields are too long for the line, so a digest stands for them.
    long_fields = (entry.candidates, entry.native, entry.compiled, entry.digests)
    if any(long_fields):
        digest = hashlib.sha256(repr(long_fields).encode()).hexdigest()
        details.append(f"and more: {digest[:8]}")
    return f"{problem}: {describe_choice_and_time(entry)}; {safe(join_nonempty(', ', *details))}"
