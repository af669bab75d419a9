"""``pytest-autotune export``: choices in forms that those read who have nothing of this package."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache
from pytest_autotune.cli.output import PATH, find_first_difference, print_lines, refuse_lossy, safe
from pytest_autotune.production import export_python
from pytest_autotune.production.export_table import PRESETS, TableLayout, is_table, tables


@click.command("export", short_help="choices as a module of Python, or as JSON that other libraries read")
@click.argument("file", metavar="FILE", type=PATH)
@click.option("--to", type=click.Choice(["python", "table"]), required=True, help="What to write.")
@click.option("-o", "--output", metavar="OUT", type=PATH, required=True, help="The module, or the folder of tables.")
@click.option("--kernel", "kernels", metavar="GLOB", multiple=True, help="Only these kernels. Repeatable.")
@click.option("--device", "devices", metavar="GLOB", multiple=True, help="Only these devices. Repeatable.")
@click.option(
    "--alias",
    "aliases",
    metavar="'NAME = OTHER'",
    multiple=True,
    help="The device NAME takes the choices of the device OTHER, which has its architecture. Repeatable.",
)
@click.option("--preset", type=click.Choice(list(PRESETS)), help="With --to=table: the fused MoE tables of this one.")
@click.option(
    "--file",
    "path",
    metavar="PATH",
    help="With --to=table: the files, with {names} of the key, {device} and {triton}, as in 'N={N},{device}.json'; "
    "[a part in brackets] is left out where a name in it has no value.",
)
@click.option("--row", metavar="NAME", help="With --to=table: the number of the key that a file has rows for.")
@click.option("--values", metavar="NAMES", default="", help="With --file: the params in a row, with commas; else all.")
def command(
    file: str,
    to: str,
    output: str,
    kernels: tuple[str, ...],
    devices: tuple[str, ...],
    aliases: tuple[str, ...],
    preset: str | None,
    path: str | None,
    row: str | None,
    values: str,
) -> None:
    """Write the choices of the cache FILE for those who launch the kernels without pytest.

    python: one module, which needs Triton and torch alone, with what picks the choice where a kernel is launched:
    prune_configs_by={"early_config_prune": pick("mylib.ops.matmul_kernel")}

    table: JSON as frameworks read it, a file for each static key and device: --preset, or --file and --row.
    """
    cache = refuse_lossy(stores.read_cache(file))
    if to == "table":
        layout = _layout(preset, path, row, values)
        _write_tables(output, tables(cache, layout, kernels, devices))
        return
    if preset or path or row or values:
        raise CacheError("--to=python", "writes one module", "--preset, --file, --row and --values are for --to=table")
    text, words = _module(cache, _line(file, kernels, devices, aliases, output))
    module = stores.OutputFile(output)
    before = module.read().decode(errors="replace")
    if before.strip():
        export_python.command_of(before, output)  # raises for what is something else, and is to stay
        if before == text:
            print_lines([safe(f"{output} is up to date: {words}")])
            return
    module.replace(text.encode())
    print_lines([safe(f"{output} was written: {words}")])


def _write_tables(output: str, texts: Mapping[str, str]) -> None:
    """Write tables below a folder. If one of them cannot be written, write none.

    :param texts: path below the folder -> text.
    """
    files: dict[str, stores.OutputFile] = {}
    for name in texts:
        path = os.path.join(output, name)
        file = stores.OutputFile(path, below=output)
        before = file.read().decode(errors="replace")
        if before.strip() and not is_table(before):
            raise CacheError(path, "is no table, and is to stay", "name another --output or --file")
        files[name] = file
    for name, file in files.items():
        file.replace(texts[name].encode())
    print_lines(safe(os.path.join(output, name)) for name in files)


def _layout(preset: str | None, path: str | None, row: str | None, values: str) -> TableLayout:
    if preset and not (path or row or values):
        return PRESETS[preset]
    if preset or not (path and row):
        raise CacheError("--to=table", "takes --preset, or --file and --row", "see pytest-autotune export --help")
    names = tuple(name.strip() for name in values.split(",") if name.strip())
    return TableLayout(path, row, names, has_others=not names)


def exported_defect(cache: Cache, path: str, file: str) -> str:
    """In what an exported module is not what its command would write; empty where it is."""
    text = _text(file)
    line = export_python.command_of(text, file)
    expected, _ = _module(cache, line, file)
    where = f"{file}:{find_first_difference(text, expected)}"
    return "" if text == expected else safe(f"{where}: is not what {path} says ({line})")


def _line(file: str, kernels: Sequence[str], devices: Sequence[str], aliases: Sequence[str], output: str) -> str:
    """The command that writes a module, as users type it."""
    given = {"kernel": kernels, "device": devices, "alias": aliases, "output": [output]}
    options = [f"--{name}={value}" for name, some in given.items() for value in some]
    return shlex.join(["pytest-autotune", "export", file, "--to=python", *options])


def _module(cache: Cache, line: str, where: str = "export") -> tuple[str, str]:
    """The module that a command writes, and what it holds in words; a :class:`CacheError` where it is no command."""
    try:
        given = command.make_context("export", shlex.split(line)[2:]).params
        # It is told to users as what to run, so nothing else may stand there.
        if line != _line(*(given[name] for name in ("file", "kernels", "devices", "aliases", "output"))):
            raise ValueError
    except (click.ClickException, click.exceptions.Exit, ValueError):
        raise CacheError(where, f"COMMAND is no command of pytest-autotune: {line}", "export it again") from None
    return export_python.module_text(cache, line, given["kernels"], given["devices"], _pairs(given["aliases"]))


def _pairs(aliases: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in aliases:
        name, separator, other = (part.strip() for part in text.partition("="))
        if not (name and separator and other):
            raise CacheError("--alias", f"expected 'NAME = OTHER', not {text!r}")
        pairs[name] = other
    return pairs


def _text(path: str) -> str:
    return stores.read_file(path).decode(errors="replace")
