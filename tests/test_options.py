"""One table has every option: the flags, the ini values, their help and the documentation come from it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from pytest_autotune.session.option_tables import written
from pytest_autotune.session.options import OPTIONS
from pytest_autotune.session.parsed_options import Options

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", ["docs/reference.md"])
def test_the_documentation_has_the_table_of_options(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")

    assert "<!-- options: " in text
    assert text == written(text), f"python -m pytest_autotune.session.option_tables {page}"


def test_a_page_gets_the_columns_that_it_asks_for() -> None:
    page = written("Above.\n<!-- options: option ini default -->\nold\n<!-- /options -->\nBelow.\n")

    assert page.startswith("Above.\n<!-- options: option ini default -->\n| option | ini | default |\n| --- |")
    assert "\n| `--autotune-max-misses=N\\|P%` | `autotune_max_misses` | no limit |\n" in page
    assert "\n| | `autotune_wait_timeout`: seconds | 120 |\n<!-- /options -->\nBelow.\n" in page


def test_every_option_of_the_table_is_read_into_a_field_of_its_name() -> None:
    assert [option.name for option in OPTIONS] == [field.name for field in fields(Options)]
