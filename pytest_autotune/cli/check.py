"""``pytest-autotune check``: whether caches are whole, and as they are written. It needs no library that tunes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.codec import encode, format_of
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import Location, is_url
from pytest_autotune.cache.model import Cache
from pytest_autotune.cache.quantities import describe_count
from pytest_autotune.cli.export import exported_defect
from pytest_autotune.cli.output import FOUND, OK, PATH, find_first_difference, print_lines, refuse_lossy, safe


@click.command("check", short_help="whether caches are valid and sorted; exit status 1 if not")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PATH)
@click.option("--fix", is_flag=True, help="Write again what is only not sorted, laid out otherwise, or there twice.")
@click.option(
    "--exported", metavar="MODULE", multiple=True, type=PATH, help="What was exported from FILE as Python. Repeatable."
)
def command(files: tuple[str, ...], fix: bool, exported: tuple[str, ...]) -> int:
    """Report what is wrong with each cache FILE, as FILE:LINE: what, or by the entry's name.

    Wrong is: what cannot be read; entries that are not sorted or there twice, as after a merge by hand, or that have
    no result; and a module that was exported from FILE, where it is not what FILE says now. No GPU is needed, and
    nothing of the caches and modules is run.
    """
    if exported and len(files) > 1:
        raise CacheError("--exported", "which of the caches was it exported from?", "name that one alone")
    bad = entries = 0
    for path in files:
        try:
            cache = refuse_lossy(stores.read_cache(path))
            if fix:
                store = stores.open_store(path)
                store.check_writable()
                store.update(lambda now: now)  # read again under the lock, so that nothing new is lost
                cache = refuse_lossy(stores.read_cache(path))
            entries += len(cache.entries)
            defects = [safe(line) for line in _defects(path, cache)]
            defects += filter(None, [exported_defect(cache, path, module) for module in exported])
        except CacheError as error:
            defects = [safe(str(error))]
        bad += bool(defects)
        print_lines(defects)
    found = f"{describe_count(len(files), 'cache')}, {describe_count(entries, 'entry')}"
    print_lines([f"{found}: {f'{bad} to mend' if bad else 'fine'}"])
    return FOUND if bad else OK


def _defects(path: str, cache: Cache) -> Iterator[str]:
    for entry in cache.entries:
        if entry.choice is None and not entry.candidates and not entry.native:
            yield f"{path}: {entry.problem} on {entry.problem.device.name} has no result (a run that updates tunes it)"
    if is_url(path) or Location.parse(path, Path()).is_folder:
        return  # it is written file by file
    form = format_of(Path(path), path)
    data, as_written = stores.read_file(path), encode(cache, form)
    if data != as_written:
        line = f":{find_first_difference(data.decode(), as_written.decode())}" if form.value.is_text else ""
        yield (
            f"{path}{line}: is not as pytest-autotune writes it: not sorted, "
            "laid out otherwise, or with something twice, of which only the faster one is used (--fix writes it again)"
        )
