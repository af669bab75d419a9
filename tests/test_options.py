"""One table has every option: the flags, the ini values, their help and the documentation come from it."""

from __future__ import annotations

from dataclasses import fields

from pytest_autotune.session.options import OPTIONS
from pytest_autotune.session.parsed_options import Options


def test_every_option_of_the_table_is_read_into_a_field_of_its_name() -> None:
    assert [option.name for option in OPTIONS] == [field.name for field in fields(Options)]
