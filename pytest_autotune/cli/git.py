"""git and caches: ``git-setup`` registers a merge driver, ``git-merge``, and a view, ``git-textconv``."""

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
from pytest_autotune.cache.codec import decode, encode, format_of
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import Location
from pytest_autotune.cache.merge import combine_caches
from pytest_autotune.cache.model import Cache, Entry
from pytest_autotune.cache.quantities import describe_seconds
from pytest_autotune.cli.merge import settled
from pytest_autotune.cli.output import FOUND, OK, PATH, describe_choice_and_time, print_lines, refuse_lossy, safe

NAME = "pytest-autotune"
_ATTRIBUTES = f"merge={NAME} diff={NAME}"
_PLAIN = re.compile(r"[\w./*\\-]+", re.ASCII)


@click.command("git-setup", short_help="have git merge caches by problem, and show them by choice")
@click.argument("files", metavar="[FILE]...", nargs=-1, type=PATH)
@click.option("--global", "globally", is_flag=True, help="Register for all repositories of this user.")
def setup(files: tuple[str, ...], globally: bool) -> None:
    """Write .gitattributes for the caches FILE... and register what it names in git's configuration.

    The attributes are to be committed; the configuration belongs to this clone, so that each other clone runs this
    once, without FILE. Where it is not registered, git merges and shows the lines, as it always does.
    """
    root = Path(_git("rev-parse", "--show-toplevel").removesuffix("\n"))
    attributes = root / ".gitattributes"
    lines = _append(attributes, [f"{_pattern(file, root)} {_ATTRIBUTES}" for file in files])
    program, scope = shlex.quote(_program()), ["--global"] if globally else []
    # Both fall back on what git does by itself, for when this installation is gone or cannot read a file.
    driver = f"{program} git-merge %O %A %B %P || git merge-file -q %A %O %B || exit 1"
    textconv = f'textconv() {{ {program} git-textconv "$1" 2>/dev/null || cat "$1"; }}; textconv'
    _git("config", *scope, f"merge.{NAME}.name", "autotuning caches, entry by entry")
    _git("config", *scope, f"merge.{NAME}.driver", driver)
    _git("config", *scope, f"diff.{NAME}.textconv", textconv)
    done = f"registered in the configuration of this {'user' if globally else 'clone'}"
    if lines:
        done += "; commit .gitattributes"
    elif not attributes.exists() or f"merge={NAME}" not in attributes.read_text(errors="replace"):
        done += "; .gitattributes names no cache yet (git-setup FILE adds one)"
    print_lines([f"{NAME}: {safe(line)}" for line in [*lines, done]])


def _git(*arguments: str) -> str:
    """What git prints; a :class:`CacheError` where it fails."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, errors="surrogateescape")
    except OSError as error:
        raise CacheError("git", f"cannot be run: {error.strerror}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise CacheError(f"git {arguments[0]}", lines[0] if lines else f"ended with {done.returncode}")
    return done.stdout


def _pattern(file: str, root: Path) -> str:
    """The line of .gitattributes begins with it: the path of a cache from the root on, of a folder all files in it.

    It is meant literally but for its last star. A name that would be more than one line is refused.
    """
    path = Path(os.path.realpath(file))
    folder = Location.parse(file, Path()).is_folder
    if not folder:
        format_of(path, file)
    try:
        inside = path.relative_to(os.path.realpath(root))
    except ValueError:
        raise CacheError(file, f"is not in the repository {root}") from None
    if re.search(r"[\x00-\x1f\x7f]", str(inside)):
        raise CacheError(file, "has a line break or another control character in its name", "name it otherwise")
    pattern = "/" + "/".join([*map(_literal, inside.parts), *(["*.textproto"] if folder else [])])
    if _PLAIN.fullmatch(pattern):
        return pattern
    return '"' + pattern.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _literal(text: str) -> str:
    return re.sub(r"([*?\[\\])", r"\\\1", text)


def _append(file: Path, wanted: Sequence[str]) -> list[str]:
    """Add lines to a file; returns those that it did not have.

    A link is refused: git does not follow it, and whoever committed it chose where it leads.
    """
    if file.is_symlink():
        raise CacheError(str(file), "is a link, which git does not follow", "put a file in its place")
    before = file.read_text(errors="surrogateescape") if file.exists() else ""
    if lines := [line for line in wanted if line not in before.splitlines()]:
        text = before if before.endswith("\n") or not before else f"{before}\n"
        text += "".join(f"{line}\n" for line in lines)
        stores.OutputFile(str(file)).replace(text.encode(errors="surrogateescape"))
    return lines


def _program() -> str:
    """This command, wherever git runs; not ``python -m``, which would import from the folder that git merges in."""
    path = Path(sys.executable).with_name(NAME)
    return str(path) if path.is_file() else NAME


@click.command("git-merge", short_help="git's merge driver; git-setup installs it")
@click.argument("ancestor")
@click.argument("ours")
@click.argument("theirs")
@click.argument("path")
def merge(ancestor: str, ours: str, theirs: str, path: str) -> int:
    """Merge the files THEIRS and OURS into OURS, as versions of the cache PATH that began with ANCESTOR.

    What only one side changed is changed; of two entries of one problem and fingerprint, the one stays that a run
    would keep. Exit status 1 where one side cannot be read, or is empty: then OURS is as it was.
    """
    form = format_of(Path(path), path)
    try:
        versions = {"ours": ours, "theirs": theirs}
        sides = {name: refuse_lossy(decode(stores.read_file(side), form, path)) for name, side in versions.items()}
        before = stores.read_file(ancestor)  # empty where both sides added the file
        combined = combine_caches(sides, decode(before, form, path) if before.strip() else Cache())
        stores.OutputFile(ours).replace(encode(combined.cache, form))
    except CacheError as error:
        print_lines([f"{NAME}: {safe(path)}: cannot be merged as a cache: {error}"], err=True)
        return FOUND
    print_lines([f"{safe(path)}: {line}" for line in settled(combined)], err=True)
    return OK


@click.command("git-textconv", short_help="a line for each entry; git-setup has git diff show these")
@click.argument("file")
def textconv(file: str) -> None:
    """Print a line for each entry of the cache FILE: the problem, its device, what was chosen, and what is noted of it.

    Where a line of the file is another, so is a line of this.
    """
    cache = refuse_lossy(stores.read_cache(file, missing_ok=True))
    print_lines(_line(entry) for entry in sorted(cache.entries, key=lambda entry: entry.sort_key))


def _line(entry: Entry) -> str:
    on = f"{safe(str(entry.problem))} on {safe(entry.problem.device.id)}: {describe_choice_and_time(entry)}"
    noted = [*map(str, entry.fingerprint), str(entry.versions), entry.label]
    noted += [f"{describe_seconds(entry.tuning_seconds)} of tuning"] if entry.tuning_seconds else []
    # What fills lines of the file and is nothing to read: that it is another has to show all the same.
    rest = (entry.candidates, entry.native, entry.compiled, entry.digests)
    if any(rest):
        noted.append(f"and more: {hashlib.sha256(repr(rest).encode()).hexdigest()[:8]}")
    return f"{on}; {safe(', '.join(filter(None, noted)))}"
