"""``pytest-autotune git-setup``: have git merge and show caches as what they are."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats import Format, format_of
from pytest_autotune.cache.locations import Location
from pytest_autotune.cli.arguments import PATH
from pytest_autotune.cli.output import print_lines, safe

NAME = "pytest-autotune"
_ATTRIBUTES = f"merge={NAME} diff={NAME} linguist-generated"
_WANTED = {"merge": NAME, "diff": NAME}


@click.command("git-setup", short_help="have git merge caches by problem, and show them by choice")
@click.argument("files", metavar="[FILE]...", nargs=-1, type=PATH)
@click.option("--global", "globally", is_flag=True, help="Register for all repositories of this user.")
def command(files: tuple[str, ...], globally: bool) -> None:
    """Write .gitattributes for the caches FILE... and register what it names in git's configuration.

    Without FILE, the caches that git knows of in this repository are meant. The attributes are to be committed; the
    configuration belongs to this clone, so that each clone runs this once. Where it is not registered, git merges and
    shows the lines, as it always does.
    """
    root = Path(_git("rev-parse", "--show-toplevel").removesuffix("\n"))
    targets = [_in_repository(file, root) for file in files] or _tracked_caches(root)
    if not targets:
        raise CacheError(str(root), "holds no cache that git knows of", "name one: pytest-autotune git-setup FILE")
    lines = [f"{_pattern(target)} {_ATTRIBUTES}" for target in targets if not _has_attributes(root, target)]
    if lines:
        _append(root / ".gitattributes", lines)
    for name, value in _configuration().items():
        _git("config", *(["--global"] if globally else []), name, value)
    done = [f"{NAME}: {safe(line)}" for line in lines] or [f"{NAME}: .gitattributes has it all"]
    where = "the configuration of this user" if globally else "the configuration of this clone"
    print_lines([*done, f"{NAME}: registered in {where}; commit .gitattributes"])


def _git(*arguments: str, cwd: Path | None = None) -> str:
    """What git prints.

    :raises CacheError: where it fails.
    """
    try:
        done = subprocess.run(["git", *arguments], cwd=cwd, capture_output=True, text=True, errors="surrogateescape")
    except OSError as error:
        raise CacheError("git", f"cannot be run: {error.strerror}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise CacheError(f"git {arguments[0]}", lines[0] if lines else f"ended with {done.returncode}")
    return done.stdout


def _in_repository(file: str, root: Path) -> PurePosixPath:
    """The path of a cache in its repository; of a folder, all files in it."""
    path = Path(os.path.realpath(file))
    folder = Location.of(file, Path()).is_folder
    if not folder:
        format_of(path, file)
    try:
        inside = path.relative_to(os.path.realpath(root))
    except ValueError:
        raise CacheError(file, f"is not in the repository {root}") from None
    return PurePosixPath(inside, "*.textproto") if folder else PurePosixPath(inside)


def _tracked_caches(root: Path) -> list[PurePosixPath]:
    """The caches among the files that git has or would add."""
    listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=root)
    paths = [PurePosixPath(name) for name in listed.split("\0") if name]
    folders = {path.parent for path in paths if path.name == stores.MARKER}
    found = {folder / "*.textproto" for folder in folders}
    found |= {path for path in paths if path.parent not in folders and _is_cache(root / path)}
    return sorted(found)


def _is_cache(path: Path) -> bool:
    try:
        is_binary = format_of(path) is Format.BINARY  # it spells no names
        with path.open("rb") as stream:
            if not is_binary and b"format_version" not in stream.read(4096):
                return False
        return bool(stores.read(path).entries)
    except (CacheError, OSError):
        return False


def _has_attributes(root: Path, target: PurePosixPath) -> bool:
    """Whether git takes the attributes for this path as they shall be, whichever line says so."""
    asked = str(target).replace("*", "any")
    # path, attribute, value; each ended by a zero
    words = _git("check-attr", "-z", *_WANTED, "--", asked, cwd=root).split("\0")
    return dict(zip(words[1::3], words[2::3], strict=False)) == _WANTED


def _pattern(target: PurePosixPath) -> str:
    """The line of .gitattributes begins with it: a path from the root on, literally but for its last star."""
    parent, name = str(target.parent), target.name
    folder = "" if parent == "." else f"{_literal(parent)}/"
    literal = f"/{folder}{name if name == '*.textproto' else _literal(name)}"
    if any(char.isspace() or char == '"' for char in literal):
        return '"' + literal.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return literal


def _literal(text: str) -> str:
    return "".join(f"\\{char}" if char in "*?[\\" else char for char in text)


def _append(file: Path, lines: Sequence[str]) -> None:
    before = file.read_text(errors="surrogateescape") if file.exists() else ""
    if before and not before.endswith("\n"):
        before += "\n"
    text = before + "".join(f"{line}\n" for line in lines)
    stores.replace_file(str(file), text.encode(errors="surrogateescape"))


def _configuration() -> dict[str, str]:
    """Both fall back on what git does by itself, for when this installation is gone or cannot read a file."""
    program = shlex.quote(_program())
    return {
        f"merge.{NAME}.name": "autotuning caches, entry by entry",
        f"merge.{NAME}.driver": f"{program} git-merge %O %A %B %P || git merge-file -q %A %O %B || exit 1",
        f"diff.{NAME}.textconv": f'textconv() {{ {program} git-textconv "$1" 2>/dev/null || cat "$1"; }}; textconv',
    }


def _program() -> str:
    """This command, by a path that holds outside of its virtual environment.

    Not ``python -m``: that would import from the folder that git merges in.
    """
    for path in (Path(sys.argv[0]), Path(sys.executable).with_name(NAME)):
        if path.name == NAME and path.is_file():
            return str(path.absolute())
    return NAME
