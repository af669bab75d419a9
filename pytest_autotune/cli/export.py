"""The command ``pytest-autotune export``, which writes choices in forms that need no part of this package."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache
from pytest_autotune.cli.output import PATH, find_first_difference, print_lines, refuse_lossy, safe
from pytest_autotune.production.export_fla import build_fla_files, may_replace_fla_file
from pytest_autotune.production.export_python import ExportedModule, build_module, find_command
from pytest_autotune.production.export_table import PRESETS, TableLayout, build_tables, may_replace_table


@click.command("export", short_help="write choices as a Python module, or as JSON that other libraries read")
@click.argument("file", metavar="FILE", type=PATH)
@click.option("--to", type=click.Choice(["python", "table", "fla"]), required=True, help="Write this form; see above.")
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    type=PATH,
    required=True,
    help="Write this Python module, or this folder of JSON files.",
)
@click.option("--kernel", "kernels", metavar="GLOB", multiple=True, help="Export only these kernels. Repeatable.")
@click.option(
    "--device", "devices", metavar="GLOB", multiple=True, help="Export only the choices of these devices. Repeatable."
)
@click.option(
    "--alias",
    "aliases",
    metavar="'NAME = OTHER'",
    multiple=True,
    help="Let the device NAME use the choices of the device OTHER of the same architecture. Both are bare names, such "
    "as NVIDIA H200, without the brackets that a summary shows. Repeatable.",
)
@click.option(
    "--preset", type=click.Choice(list(PRESETS)), help="With --to=table: write the fused MoE tables of this library."
)
@click.option(
    "--file",
    "file_pattern",
    metavar="PATH",
    help="With --to=table: the names of the files, such as 'N={N},{device}.json'. {NAME} stands for a "
    "value of the key, "
    "{device} for the GPU, {triton} for the version. Text in [brackets] is left out if a {NAME} in it has no value.",
)
@click.option(
    "--row", metavar="NAME", help="With --to=table: write a row for each value of this part of the key, such as M."
)
@click.option(
    "--values",
    metavar="NAMES",
    default="",
    help="With --file: write only these params into a row, separated by commas. Default: all.",
)
def command(
    file: str,
    to: str,
    output: str,
    kernels: tuple[str, ...],
    devices: tuple[str, ...],
    aliases: tuple[str, ...],
    preset: str | None,
    file_pattern: str | None,
    row: str | None,
    values: str,
) -> None:
    """Write the choices of the cache FILE for libraries that launch the kernels without pytest.

    python: one module, which needs only Triton and torch. It picks the choice when a kernel is launched:
    prune_configs_by={"early_config_prune": pick("mylib.ops.matmul_kernel")}

    table: JSON that frameworks read, a file for each static key and device: --preset, or --file and --row.

    fla: JSON that flash-linear-attention reads, a folder for each device and a file for each kernel.
    """
    cache = refuse_lossy(stores.read_cache(file))
    if aliases and to != "python":
        raise CacheError("--alias", "works only with --to=python", "leave it out")
    has_layout = bool(preset or file_pattern or row or values)
    if has_layout and to != "table":
        raise CacheError(f"--to={to}", "does not take --preset, --file, --row and --values", "they are for --to=table")
    if to == "table":
        layout = _choose_layout(preset, file_pattern, row, values)
        print_lines(_write_files(output, build_tables(cache, layout, kernels, devices), may_replace_table))
    elif to == "fla":
        export_for_fla = build_fla_files(cache, kernels, devices)
        print_lines([*_write_files(output, export_for_fla.texts, may_replace_fla_file), export_for_fla.summary])
    else:
        export = _ExportCommand(file, kernels, devices, aliases, output)
        # The module keeps its command, so that users can run the command again. If a path looks like an option, nobody
        # could. Parsing the command refuses such a path.
        _write_module(cache, _ExportCommand.parse(str(export), "export"))


def _choose_layout(preset: str | None, file_pattern: str | None, row: str | None, values: str) -> TableLayout:
    """Return the layout of a table: a preset, or the layout that ``--file``, ``--row`` and ``--values`` describe.

    A layout has the names of the files, the number of the key that a file has rows for, and the params in a row.

    :param preset: the value of ``--preset``; None if it was not typed. The same holds for the other options.
    :param file_pattern: the value of ``--file``: ``N={N},{device}.json``.
    :param row: the value of ``--row``.
    :param values: the value of ``--values``, with commas; empty if it was not typed.
    :raises CacheError: if the options name no complete layout, or if they name two.
    """
    has_own_layout = bool(file_pattern or row or values)
    if preset and not has_own_layout:
        return PRESETS[preset]
    if preset or not file_pattern or not row:
        raise CacheError("--to=table", "needs --preset, or both --file and --row", "see pytest-autotune export --help")
    names = []
    for name in values.split(","):
        if name.strip():
            names.append(name.strip())
    # Without names, a row has all params.
    return TableLayout(file_pattern, row, tuple(names), has_other_params=not names)


def _write_files(output: str, texts: Mapping[str, str], may_replace: Callable[[str, str], bool]) -> list[str]:
    """Write files below a folder, and return their paths.

    :param output: the folder.
    :param texts: path below the folder -> text.
    :param may_replace: tells whether the text of a file that exists may be replaced by the new text.
    :raises CacheError: if a file must not be replaced. Then no file is written.
    """
    #: Path below the folder -> the file there. All files are checked before the first is written.
    files: dict[str, stores.OutputFile] = {}
    for relative_path, text in texts.items():
        path = os.path.join(output, relative_path)
        file = stores.OutputFile(path, below=output)
        old_text = file.read().decode(errors="replace")
        if old_text.strip() and not may_replace(old_text, text):
            event = "was not overwritten, because it is no earlier export, or has rows that this export lacks"
            raise CacheError(path, event, "delete it, or name another --output or --file")
        files[relative_path] = file
    for relative_path, file in files.items():
        file.replace(texts[relative_path].encode())
    return [safe(os.path.join(output, relative_path)) for relative_path in files]


@dataclass(frozen=True)
class _ExportCommand:
    """An export of choices as a Python module. The module keeps the command, so that it can be written again.

    :param file: the cache.
    :param kernels: globs; all kernels if there are none.
    :param devices: globs; all devices if there are none.
    :param aliases: texts ``NAME = OTHER``.
    :param output: the module.
    """

    file: str
    kernels: tuple[str, ...]
    devices: tuple[str, ...]
    aliases: tuple[str, ...]
    output: str

    @classmethod
    def parse(cls, line: str, module: str) -> _ExportCommand:
        """Parse the command of an exported module.

        Messages ask users to run this line. A module may come from a stranger, so its line must not hold another
        command, such as ``; rm -r x``. A line is therefore accepted only if it is exactly as :meth:`__str__` writes it.

        :param line: the command, as ``pytest-autotune export FILE --to=python --output=OUT``.
        :param module: the name of the module in messages.
        :raises CacheError: for any other line.
        """
        error = CacheError(module, f"its COMMAND is not a command of pytest-autotune export: {line}", "export it again")
        try:
            # The first two words are "pytest-autotune" and "export".
            arguments = shlex.split(line)[2:]
            # Click parses the arguments without running the command.
            params = command.make_context("export", arguments).params
            export = cls(params["file"], params["kernels"], params["devices"], params["aliases"], params["output"])
        except (click.ClickException, click.exceptions.Exit, ValueError):
            # An option is unknown, or a quote is not closed.
            raise error from None
        if str(export) != line:
            raise error
        return export

    def __str__(self) -> str:
        """Return the command as a user types it."""
        options = []
        for name, values in (("kernel", self.kernels), ("device", self.devices), ("alias", self.aliases)):
            for value in values:
                options.append(f"--{name}={value}")
        return shlex.join(["pytest-autotune", "export", self.file, "--to=python", *options, f"--output={self.output}"])

    def build_module(self, cache: Cache) -> ExportedModule:
        """Return the module of a cache."""
        return build_module(cache, str(self), self.kernels, self.devices, _parse_aliases(self.aliases))


def _parse_aliases(texts: Sequence[str]) -> dict[str, str]:
    """Parse texts such as ``NVIDIA H100 NVL = NVIDIA H100 PCIe``.

    :returns: name of a device -> name of the device whose choices it takes.
    :raises CacheError: for a text of another form.
    """
    aliases = {}
    for text in texts:
        name, separator, chosen_device = text.partition("=")
        name, chosen_device = name.strip(), chosen_device.strip()
        if not (name and separator and chosen_device):
            raise CacheError("--alias", f"expected 'NAME = OTHER', not {text!r}")
        aliases[name] = chosen_device
    return aliases


def _write_module(cache: Cache, export: _ExportCommand) -> None:
    """Write an exported module, and print a line about it. An equal module is not written again.

    :raises CacheError: if the path has a file that is not an exported module; that file stays.
    """
    module = export.build_module(cache)
    file = stores.OutputFile(export.output)
    old_text = file.read().decode(errors="replace")
    if old_text.strip():
        # Only an exported module has a command. This call raises an error for any other file.
        find_command(old_text, export.output)
        if old_text == module.text:
            print_lines([safe(f"{export.output} is up to date: {module.summary}")])
            return
    file.replace(module.text.encode())
    print_lines([safe(f"{export.output} was written: {module.summary}")])


def find_export_defect(cache: Cache, path: str, module: str) -> str:
    """Return the first difference between an exported module and a new export; empty if there is none.

    :param path: the path of the cache.
    :param module: the path of the exported module.
    :returns: a line such as ``mylib/choices.py:300: differs from a new export of cache.pb (run: COMMAND)``.
    :raises CacheError: if the module is no export.
    """
    text = stores.read_file(module).decode(errors="replace")
    export_command = find_command(text, module)
    expected_text = _ExportCommand.parse(export_command, module).build_module(cache).text
    if text == expected_text:
        return ""
    line_number = find_first_difference(text, expected_text)
    return safe(f"{module}:{line_number}: differs from a new export of {path} (run: {export_command})")
