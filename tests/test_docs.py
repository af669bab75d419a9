"""The documentation agrees with itself and with the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import pytest_autotune
from pytest_autotune import Measuring
from pytest_autotune.cache.locations import Location
from pytest_autotune.cache.model import Device, Problem
from pytest_autotune.modes import MODES, Option
from pytest_autotune.plugin.options import OPTIONS
from pytest_autotune.plugin.values import READERS, CacheArgument
from pytest_autotune.report.json_report import to_mapping
from pytest_autotune.run.lookup import Outcome
from pytest_autotune.run.result import RunResult
from pytest_autotune.run.rows import ProblemRow

try:
    import tomllib
except ImportError:  # Python 3.10, where pytest brings it
    import tomli as tomllib

PACKAGE = Path(pytest_autotune.__file__).parent
ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "example_suite").glob("*.md")])
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def prose_of(page: Path) -> str:
    return _FENCED.sub("", read(page))


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.*)$", prose_of(page), re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'<a name="([^"]+)">', read(page)))


def rows_below(page: str, heading: str) -> Iterator[list[str]]:
    """The cells of the tables in one section."""
    section = re.split(r"^#+ ", page.split(f"# {heading}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]
    for line in section.splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def code_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_and_anchor_in_the_docs_exists(page: Path) -> None:
    for link in _LINK.findall(prose_of(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors_of(target), f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_toml_and_yaml_examples_in_the_docs_are_valid(page: Path) -> None:
    for language, example in _FENCED.findall(read(page)):
        if language == "toml":
            tomllib.loads(example)
        elif language == "yaml":
            yaml.safe_load(example)


#: A text, or a value of pytest, for each kind of option. The kinds that are missing here are below.
EXAMPLES: dict[str, Any] = {
    "switch": True,
    "names": ["triton"],
    "lines": ["triton:lib.*"],
    "pairs": ["H100 = H200"],
    "seconds": "1",
    "limit": "0",
}


def example_value(option: Option, folder: Path) -> Any:
    """Return a value of an option of a mode that turns the mode on."""
    if option.kind in ("path", "paths"):
        argument = CacheArgument(Location.parse("misses.jsonl", folder), option.flag)
        return argument if option.kind == "path" else [argument]
    # A kind with the name of a mode takes "all".
    example = EXAMPLES.get(option.kind, "all")
    if option.kind == "word":
        example = next(word for word in option.metavar.split("|") if word != "off")
    return READERS[option.kind](example, option)


def test_docs_list_exactly_the_keys_of_the_json_report(tmp_path: Path) -> None:
    row = ProblemRow(Problem("triton", "lib.add", (), Device("GPU", "sm_90", 132)), Outcome.HIT)
    result = RunResult(rows=(row,))
    sections = []
    (tmp_path / "misses.jsonl").touch()
    for mode in MODES:
        made = mode.make({option.name: example_value(option, tmp_path) for option in mode.options})
        assert made is not None
        sections.append(made.build_section(result))
    report = to_mapping(replace(result, sections=tuple(sections)))
    page = read(ROOT / "docs/reference/json-report.md")
    rows_of_report = rows_below(page, "The object")
    assert {name for row in rows_of_report for name in code_in(row[0])} == set(report)
    rows_of_lookup = rows_below(page, "A row of `lookups`")
    assert {name for row in rows_of_lookup for name in code_in(row[0])} == set(report["lookups"][0])


def test_docs_list_exactly_the_options_and_ini_keys() -> None:
    page = read(ROOT / "docs/reference/options.md")
    names = set()
    for row in rows_below(page, "Options and ini values"):
        names.update(re.findall(r"--autotune-[a-z-]+|autotune_\w+", f"{row[0]} {row[1]}"))
    flags = {option.flag for option in OPTIONS if option.is_flag}
    assert names == flags | {option.ini for option in OPTIONS if option.is_ini}
    assert len(flags) == 13


def test_the_docs_list_fields_and_defaults_of_class_measuring() -> None:
    page = read(ROOT / "docs/hand-written-tuners.md")
    documented = {}
    for fields, defaults, *_ in [row for row in rows_below(page, "Measuring") if len(row) == 3 and row[0] != "field"]:
        values = defaults.replace("`", "").split(", ")
        documented.update(zip(code_in(fields), map(ast.literal_eval, values), strict=True))
    assert documented == asdict(Measuring())


def test_contributing_md_states_a_reason_for_each_dependency() -> None:
    project = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]
    declared = [
        *project["dependencies"],
        *(requirement for extra in project["optional-dependencies"].values() for requirement in extra),
    ]
    text = " ".join(row[0] for row in rows_below(read(ROOT / "CONTRIBUTING.md"), "Dependencies"))
    words = set(re.findall(r"[\w-]+", text.lower()))
    assert {re.split(r"[<>=]", requirement)[0].lower() for requirement in declared} <= words


def test_every_module_that_the_docs_name_exists() -> None:
    module = re.compile(r"`((?:plugin|modes|production|run|workers|report|cache|tuners|cli|devices)/[\w/.]*)`")
    for page in (ROOT / "docs/how-it-works.md", ROOT / "CONTRIBUTING.md"):
        for name in module.findall(prose_of(page)):
            assert (PACKAGE / name).exists(), f"{page.name}: {name}"


def test_messages_quoted_in_troubleshooting_exist_in_the_code() -> None:
    """In the page, `…` stands for the parts that differ. A string of the package has each other part of a message."""
    trees = [ast.parse(read(path)) for path in PACKAGE.rglob("*.py")]
    strings = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    # The HTML report has its messages in a script.
    scripts = [read(path) for path in PACKAGE.rglob("*.js")]
    text_of_package = "\n".join([*scripts, *(text for text in strings if isinstance(text, str))])
    page = read(ROOT / "docs/troubleshooting.md")
    quoted = [
        message for line in page.splitlines() if line.startswith("| `") for message in code_in(line.split(" | ")[0])
    ]
    assert len(quoted) > 20
    missing = [
        part
        for message in quoted
        for part in message.split("…")
        if part.strip() and part.strip(" :") not in text_of_package
    ]
    assert missing == []
