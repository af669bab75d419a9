"""``pytest-autotune check``: whether caches are whole, as they are written, and can be of use here.

It reads files and nothing else: no GPU, no library that tunes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Set
from contextlib import suppress
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.codec import Format, encode, format_of
from pytest_autotune.cache.counted import counted
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import Location
from pytest_autotune.cache.model import Cache, Entry
from pytest_autotune.cli.export import exported_defects
from pytest_autotune.cli.output import FOUND, OK, PATH, print_lines, problem_text, safe, whole
from pytest_autotune.tuners import TUNERS, adapter_class, third_party_tuners

#: So many useless entries are shown one by one.
_SHOWN = 10


@click.command("check", short_help="whether caches are valid, sorted and of use here; exit status 1 if not")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PATH)
@click.option("--fix", is_flag=True, help="Write again what is only not sorted, laid out otherwise, or there twice.")
@click.option(
    "--tuner",
    "tuners",
    metavar="NAME",
    multiple=True,
    help="A tuner whose adapter is not installed here, and where the cache is used it is. Repeatable.",
)
@click.option("--root", metavar="FOLDER", type=PATH, default=".", help="Where the packages of the kernels are.")
@click.option(
    "--exported", metavar="MODULE", multiple=True, type=PATH, help="What was exported from FILE as Python. Repeatable."
)
def command(files: tuple[str, ...], fix: bool, tuners: tuple[str, ...], root: str, exported: tuple[str, ...]) -> int:
    """Report what is wrong with each cache FILE, as FILE:LINE: what.

    Wrong is: what cannot be read; entries that are not sorted or there twice, as after a merge by hand; and entries
    that can never be a hit here: without a result, of a tuner that has no adapter, of a kernel that its module does
    not have; and a module that was exported from FILE, where it is not what FILE says now. No GPU is needed, and
    nothing of the caches, modules or kernels is run.
    """
    if exported and len(files) > 1:
        raise CacheError("--exported", "which of the caches was it exported from?", "name that one alone")
    known = frozenset({*TUNERS, *tuners, *(one.name for one in third_party_tuners())})
    bad = entries = 0
    for path in files:
        try:
            cache = whole(stores.read(path))
            if fix:
                stores.check_writable(path)
                stores.update(path, lambda now: now)  # read again under the lock, so that nothing new is lost
                cache = whole(stores.read(path))
            entries += len(cache.entries)
            defects = [*_layout(path, cache)] or [*_useless(path, cache, known, root)]
            defects += [line for module in exported for line in exported_defects(cache, path, module)]
        except CacheError as error:
            defects = [safe(str(error))]
        bad += bool(defects)
        print_lines(defects)
    found = f"{counted(len(files), 'cache')}, {counted(entries, 'entry')}"
    print_lines([f"{found}: {f'{bad} to mend' if bad else 'fine'}"])
    return FOUND if bad else OK


def _layout(path: str, cache: Cache) -> Iterator[str]:
    """What is not as it is written; nothing where every byte is, and for a folder, which is written file by file."""
    if stores.is_url(path) or Location.of(path, Path()).is_folder:
        return
    form = format_of(Path(path), path)
    data, as_written = stores.file_bytes(path), encode(cache, form)
    if data == as_written:
        return
    pairs = zip(data.split(b"\n"), as_written.split(b"\n"), strict=False)
    line = next((number for number, (one, other) in enumerate(pairs, 1) if one != other), 1)
    where = safe(path) if form is Format.BINARY else f"{safe(path)}:{line}"
    yield (
        f"{where}: is not as pytest-autotune writes it: not sorted, laid out otherwise, or with something twice, of "
        "which only the faster one is used (--fix writes it again)"
    )


def _useless(path: str, cache: Cache, known: Set[str], root: str) -> Iterator[str]:
    """Entries that no lookup can ever find, or be served by; each with its line in a text, which is in order here."""
    is_file = not (stores.is_url(path) or Location.of(path, Path()).is_folder)
    is_text = is_file and format_of(Path(path)) is Format.TEXT
    text = stores.file_bytes(path).split(b"\n") if is_text else []
    lines = [f":{number}" for number, line in enumerate(text, 1) if line.startswith(b"entries")]
    found = [(number, what) for number, entry in enumerate(cache.entries) if (what := _defect(entry, known, root))]
    yield from (f"{safe(path)}{lines[number] if lines else ''}: {what}" for number, what in found[:_SHOWN])
    if len(found) > _SHOWN:
        yield f"{safe(path)}: {len(found) - _SHOWN} more entries of no use"


def _defect(entry: Entry, known: Set[str], root: str) -> str:
    """What is wrong with an entry that can be of no use; empty for others.

    :param known: the tuners that have an adapter.
    :param root: the folder that the kernels' packages are in.
    """
    problem = entry.problem
    if not known & {problem.tuner, problem.library}:
        tuner = safe(problem.tuner)
        return f"no adapter for the tuner {tuner} is installed here (--tuner={tuner} where it is elsewhere)"
    if entry.choice is None and not entry.candidates and not entry.native:
        return f"{problem_text(problem)} has no result"
    if any(part.value != part.value for part in (*problem.key, *entry.fingerprint)):
        return f"{problem_text(problem)} has a value that equals nothing"
    return safe(_lacks(problem.kernel, root)) if _are_functions(problem.library) else ""


@lru_cache
def _are_functions(tuner: str) -> bool:
    with suppress(Exception):  # of a package that cannot be imported here
        return bool(getattr(adapter_class(tuner), "kernels_are_functions", False))
    return False


def _lacks(kernel: str, root: str) -> str:
    """Why there can be no such kernel below a folder; empty where there is one, or its source is not there to be asked.

    :param kernel: ``module.qualname``; it is found out by reading, and never by importing.
    """
    names = kernel.split(".<locals>", 1)[0].split(".")
    folders, file = [os.path.abspath(root), os.path.abspath(os.path.join(root, "src"))], ""
    while names and folders and (found := PathFinder.find_spec(names[0], folders)) is not None:
        names, folders, file = names[1:], list(found.submodule_search_locations or ()), found.origin or ""
    if not file.endswith(".py"):
        return ""
    text = Path(file).read_text(errors="replace")
    # As a word anywhere: it may be defined, assigned or imported.
    gone = next((name for name in names if not re.search(rf"\b{re.escape(name)}\b", text)), "")
    return f"{kernel}: there is no {gone} in {os.path.relpath(file)}" if gone else ""
