"""The command ``pytest-autotune check``, which reports defects of caches. It imports no library that tunes.

A cache file has one correct form: the bytes that this package writes for its entries. Any other form is a defect.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.codec import encode, find_format
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import Location, is_url
from pytest_autotune.cache.model import Cache
from pytest_autotune.cache.wording import describe_count
from pytest_autotune.cli.export import find_export_defect
from pytest_autotune.cli.output import (
    FOUND,
    OK,
    PATH,
    find_first_difference,
    print_lines,
    refuse_file_beside,
    refuse_lossy,
    safe,
)


@click.command("check", short_help="check that caches are valid and sorted; exit status 1 if not")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PATH)
@click.option(
    "--fix",
    is_flag=True,
    help="Rewrite files that are valid but not sorted, formatted otherwise, or have duplicate entries.",
)
@click.option(
    "--exported",
    metavar="MODULE",
    multiple=True,
    type=PATH,
    help="Also check this Python module, which was exported from FILE. Repeatable.",
)
def command(files: tuple[str, ...], fix: bool, exported: tuple[str, ...]) -> int:
    """Report the defects of each cache FILE, as FILE:LINE: DEFECT, or by the name of the entry.

    Defects are: a file that cannot be read; entries that are not sorted, or stand there twice, as after a merge by
    hand; entries without a result; and a module that was exported from FILE and differs from a new export. The check
    needs no GPU, and runs no code of the caches and modules.
    """
    if exported and len(files) > 1:
        raise CacheError(
            "--exported", "takes one FILE, the cache that the module was exported from", "leave out the other FILEs"
        )
    bad_cache_count = 0
    bad_modules: list[str] = []
    export_defects: list[str] = []
    entry_count = 0
    for path in files:
        try:
            cache = _read_cache(path, fix)
            entry_count += len(cache.entries)
            defects = _list_defects(path, cache)
            for module in exported:
                export_defect = find_export_defect(cache, path, module)
                if export_defect:
                    bad_modules.append(module)
                    export_defects.append(export_defect)
        except CacheError as error:
            # The other files are checked all the same.
            defects = [safe(str(error))]
        if defects:
            bad_cache_count += 1
        print_lines(defects)
    print_lines(export_defects)
    verdict = _describe_verdict(bad_cache_count, bad_modules)
    print_lines([f"{describe_count(len(files), 'cache')}, {describe_count(entry_count, 'entry')}: {verdict}"])
    if bad_cache_count or bad_modules:
        return FOUND
    return OK


def _describe_verdict(bad_cache_count: int, bad_modules: Sequence[str]) -> str:
    """Return the verdict in words: ``fine``, ``1 cache has defects``, ``mylib/choices.py differs from a new export``.

    :param bad_modules: the paths of the exported modules that differ from a new export.
    """
    parts = []
    if bad_cache_count:
        parts.append(f"{describe_count(bad_cache_count, 'cache has', 'caches have')} defects")
    for module in bad_modules:
        parts.append(f"{safe(module)} differs from a new export")
    return ", ".join(parts) or "fine"


def _read_cache(path: str, fix: bool) -> Cache:
    """Read a cache. With ``--fix``, first write it again in the form in which this package writes its entries.

    :raises CacheError: if the cache cannot be read or written, or has fields that this version does not know.
    """
    cache = refuse_lossy(stores.read_cache(path))
    if not fix:
        return cache
    store = stores.open_store(path)
    store.check_writable()
    # The store reads the content again under its lock, so entries of another process stay.
    with store.open_for_update() as opened:
        updated = opened.write(opened.cache)
    refuse_file_beside(path, updated)
    return refuse_lossy(stores.read_cache(path))


def _list_defects(path: str, cache: Cache) -> list[str]:
    """Return the defects of a cache: entries without a result, and a file that is not as this package writes it."""
    defects = []
    for entry in cache.entries:
        if entry.choice is None and not entry.candidates and not entry.native:
            problem = f"{entry.problem} on {entry.problem.device.name}"
            defects.append(safe(f"{path}: {problem} has no result (a run with --autotune-update tunes it)"))
    # Only a single file has a form that can be compared. A folder and a store at a URL have many files.
    if not is_url(path) and not Location.parse(path, Path()).is_folder:
        defect = _find_form_defect(path, cache)
        if defect:
            defects.append(safe(defect))
    return defects


def _find_form_defect(path: str, cache: Cache) -> str:
    """Return the defect of a file whose bytes this package would write otherwise: ``FILE:LINE: is not sorted, …``.

    The line is the first that differs. A binary file has no lines, so only the file is named. The text is empty if the
    file has no such defect.

    :param cache: the cache that the file holds.
    """
    cache_format = find_format(Path(path), path)
    data = stores.read_file(path)
    expected_data = encode(cache, cache_format)
    if data == expected_data:
        return ""
    place = path
    if cache_format.value.is_text:
        place += f":{find_first_difference(data.decode(), expected_data.decode())}"
    return (
        f"{place}: is not sorted, not formatted as pytest-autotune does, or has duplicate entries "
        "(pytest-autotune check --fix rewrites the file)"
    )
