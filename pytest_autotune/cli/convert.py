"""The command ``pytest-autotune convert``, which writes a cache in another form, also from and to XLA's own files.

XLA can dump its autotuning results into a file and load them from it (``--xla_gpu_dump_autotune_results_to``). Such a
file is no cache of this package. XLA has two formats of such files, new and legacy.

An existing output is replaced only if nothing in it is lost.
"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Device
from pytest_autotune.cache.wording import describe_count
from pytest_autotune.cli.output import PATH, print_lines, refuse_file_beside, refuse_lossy, safe

if TYPE_CHECKING:
    from pytest_autotune.tuners.xla.files import XlaLayout

_XLA = "xla"


@click.command("convert", short_help="write a cache in another format, or convert from and to XLA's files")
@click.argument("path", metavar="IN", type=PATH)
@click.argument("output", metavar="OUT", type=PATH)
@click.option("--from", "from_", type=click.Choice([_XLA]), help="Read IN as a file that XLA wrote.")
@click.option("--to", type=click.Choice([_XLA]), help="Write a file that XLA can load.")
@click.option(
    "--xla-format",
    type=click.Choice(["new", "legacy"]),
    help="With --to=xla: which of XLA's two formats to write, if IN has entries of both.",
)
@click.option(
    "--device",
    metavar="NAME,ARCH,N",
    help='With --from=xla: the device of the entries, as "NVIDIA H200,sm_90,132" (XLA files do not name it).',
)
def command(
    path: str, output: str, from_: str | None, to: str | None, xla_format: str | None, device: str | None
) -> None:
    """Write the cache IN as OUT, in the form that the suffix of OUT stands for.

    An existing OUT is replaced only if IN has every problem and every entry of OUT.
    """
    if device is not None and from_ is None:
        raise CacheError("--device", "is only for files of XLA", "add --from=xla")
    if xla_format is not None and to is None:
        raise CacheError("--xla-format", "is only for output for XLA", "add --to=xla")
    xla_device = None
    if device is not None:
        xla_device = _parse_device(device)
    if from_:
        cache = _decode_xla(stores.read_file(path), path, xla_device)
    else:
        cache = _read_cache(path)
    if to:
        print_lines([safe(_write_xla(cache, path, output, xla_format))])
        return
    store = stores.open_store(output)
    store.check_writable()
    with store.open_for_update() as opened:
        remedy = "name another file, remove this one, or merge both with pytest-autotune merge"
        _refuse_loss(cache, output, opened.cache, remedy)
        updated = opened.write(cache)
    print_lines([f"{describe_count(len(cache.entries), 'entry')} written to {safe(updated.written_to)}"])
    refuse_file_beside(output, updated)


def _refuse_loss(cache: Cache, output: str, output_cache: Cache, remedy: str) -> None:
    """Refuse to replace a cache that has a problem or an entry which the converted cache lacks.

    A converted entry with the same problem and fingerprint (its identity) replaces the entry of the output.

    :param cache: the converted cache.
    :param output: the path of the output, for the error.
    :param output_cache: the content of the output now.
    :param remedy: how to keep both, for the error.
    :raises CacheError: if there is such a problem or entry.
    """
    problems = {entry.problem for entry in cache.entries}
    identities = {entry.identity for entry in cache.entries}
    lost_problems = {entry.problem for entry in output_cache.entries} - problems
    lost_identities = {entry.identity for entry in output_cache.entries} - identities
    if not lost_identities:
        return
    lost = describe_count(len(lost_identities), "entry")
    if lost_problems:
        # All entries of a lost problem are lost. A user understands the number of problems better.
        lost = describe_count(len(lost_problems), "problem")
    raise CacheError(output, f"was not overwritten, because it holds {lost} that IN lacks", remedy)


def _parse_device(text: str) -> Device:
    """Parse ``NVIDIA H200,sm_90,132``: the name, the architecture and the number of multiprocessors.

    :raises CacheError: for a text of another form.
    """
    # The name may have a comma: "NVIDIA H200, NVL,sm_90,132".
    parts = list(map(str.strip, text.rsplit(",", 2)))
    if len(parts) != 3 or not parts[0] or not parts[2].isdecimal():
        raise CacheError("--device", f"expected NAME,ARCH,MULTIPROCESSORS such as NVIDIA H200,sm_90,132, not {text!r}")
    return Device(parts[0], parts[1], int(parts[2]))


def _read_cache(path: str) -> Cache:
    """Read a cache. If the file is XLA's, the error says so."""
    try:
        return refuse_lossy(stores.read_cache(path))
    except CacheError:
        if _is_xla_file(path):
            raise CacheError(path, "is a file of XLA, not a cache", "add --from=xla") from None
        raise


def _is_xla_file(path: str) -> bool:
    """Whether a file can be read and has autotuning results of XLA."""
    try:
        return _is_xla_data(stores.read_file(path), path)
    except CacheError:
        return False


def _is_xla_data(data: bytes, path: str) -> bool:
    """Whether the bytes of a file are autotuning results of XLA. An empty file has none."""
    try:
        _decode_xla(data, path)
    except CacheError:
        return False
    return bool(data.strip())


def _decode_xla(data: bytes, path: str, device: Device | None = None) -> Cache:
    """Return the results of a file of XLA as a cache.

    :param data: the bytes of the file.
    :param path: names the file in messages.
    :param device: the device of the entries, which XLA does not write into its files; None if the user named none.
    """
    from pytest_autotune.tuners.xla import entries, files

    return entries.to_cache(files.read(data, path), device)


def _write_xla(cache: Cache, path: str, output: str, format_name: str | None) -> str:
    """Write the entries of XLA in a cache as a file of XLA, and return a line about the file.

    :param path: of the cache, for messages.
    :param output: the path of the file.
    :param format_name: ``"new"`` or ``"legacy"``; None if the cache has entries of a single format.
    """
    from pytest_autotune.tuners.xla import entries, files

    # The entries of both formats. A file has only entries of one.
    xla_entries = [entries.to_xla(entry) for entry in cache.entries if entry.problem.tuner == entries.NAME]
    layout = _choose_xla_layout({entry.layout for entry in xla_entries}, path, format_name)
    written_entries = [entry for entry in xla_entries if entry.layout is layout]
    file = stores.OutputFile(output)
    # XLA's files do not name the device. The new results lose it here, too, so that they equal those of the old file.
    _refuse_xla_loss(entries.to_cache(written_entries), output, file.read())
    file.replace(files.write(written_entries, layout, files.is_text(Path(output))))
    line = f"{describe_count(len(written_entries), 'entry')} written to {output} in XLA's {layout.value} format"
    left_out_count = len(cache.entries) - len(written_entries)
    if left_out_count:
        line += f"; {describe_count(left_out_count, 'entry')} of other tuners or formats left out"
    return line


def _choose_xla_layout(layouts: Set[XlaLayout], path: str, format_name: str | None) -> XlaLayout:
    """Return the format of XLA in which a cache is written.

    :param layouts: the formats of the cache's entries.
    :param path: of the cache, for messages.
    :param format_name: the name of the wanted format; None for the only format of the entries.
    :raises CacheError: if the cache has no entry in that format, or if no format is wanted and it has entries in both.
    """
    if format_name:
        for layout in layouts:
            if layout.value == format_name:
                return layout
        raise CacheError(path, f"has no entries in XLA's {format_name} format", "leave --xla-format out")
    if not layouts:
        raise CacheError(path, "has no entries of XLA to write", "name a cache of a JAX suite")
    if len(layouts) > 1:
        raise CacheError(path, "has entries in both of XLA's formats", "add --xla-format=new or --xla-format=legacy")
    (only_layout,) = layouts
    return only_layout


def _refuse_xla_loss(cache: Cache, output: str, old_data: bytes) -> None:
    """Refuse to replace a file which is not XLA's, or which has results that the new file would lack.

    :param cache: the results of the new file.
    :param old_data: the bytes of the file now; empty if there is none.
    :raises CacheError: for such a file.
    """
    if not old_data.strip():
        return
    if not _is_xla_data(old_data, output):
        raise CacheError(output, "was not overwritten, because it is not a file of XLA", "name a new file")
    _refuse_loss(cache, output, _decode_xla(old_data, output), "name another file, or remove this one")
