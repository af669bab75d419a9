"""Which code of a library makes a choice stale, and the notes about kernels without a source."""

from __future__ import annotations

from typing import Any

from tests.conftest import Suite

KERNEL = """
import os
from pytest_autotune import Measuring
import vendor_dsl

act = vendor_dsl.fast if os.environ.get("FAST_OPS") else vendor_dsl.exact

@vendor_dsl.Kernel
def scale(x):
    return x * 2

def run(config):
    scale(act(config))

def tune(tuner, **options):
    how = Measuring(clock=lambda call: 1.0)
    return tuner("lib.scale", **{"space": [1, 2], "run": run, "measuring": how, "device": "cpu", **options})
"""
DSL = """
class Kernel:
    def __init__(self, function):
        self._pyfunc = function

    def __call__(self, x):
        return self._pyfunc(x)

def fast(x):
    return x

def exact(x):
    return x
"""
TEST = """
import pytest
from ops import tune

@pytest.mark.parametrize("n", [1, 2])
def test_scale(autotune_cache, n):
    tune(autotune_cache.tune, key={"n": n})
"""


def a_suite(suite: Suite, kernel: str = KERNEL, test: str = TEST, version: str = "1.0", dsl: str = DSL) -> Suite:
    """Write a suite, with a library in a virtual environment beside its tests."""
    site = suite.folder / "venv" / "site-packages"
    for old in site.glob("*.dist-info/*"):
        old.unlink()
        old.parent.rmdir()
    dist_info = site / f"vendor_dsl-{version}.dist-info"
    dist_info.mkdir(parents=True)
    (dist_info / "RECORD").write_text("vendor_dsl.py,sha256=abc,1\n")
    (site / "vendor_dsl.py").write_text(dsl)
    suite.pytester.makepyfile(ops=kernel, test_lib=test)
    suite.pytester.makeini("[pytest]\npythonpath = . venv/site-packages\n")
    return suite


def test_entry_is_stale_if_its_kernel_now_calls_another_helper(serial_suite: Suite) -> None:
    a_suite(serial_suite).dump()

    row, *_ = serial_suite.load_stale(FAST_OPS="1")

    assert row["changed"] == ["source"]
    assert "(act)" in row["reason"]
    assert serial_suite.load("--autotune-max-misses=0", FAST_OPS="1").ret == 1
    assert serial_suite.load("--autotune-max-misses=0").ret == 0


def test_a_new_version_of_an_installed_library_is_still_a_hit(serial_suite: Suite) -> None:
    a_suite(serial_suite).dump()
    assert "vendor-dsl 1.0" in serial_suite.cache.read_text()
    a_suite(serial_suite, version="2.0", dsl=DSL.replace("return x", "return x + 0"))

    assert serial_suite.load("--autotune-max-misses=0").ret == 0


def test_editing_a_kernel_of_a_library_makes_its_entry_stale(serial_suite: Suite) -> None:
    a_suite(serial_suite).dump()
    a_suite(serial_suite, KERNEL.replace("x * 2", "x * 3"))

    row, *_ = serial_suite.load_stale()
    assert row["changed"] == ["source"]
    assert "(scale)" in row["reason"]


def test_editing_a_kernel_in_argument_source_makes_entries_stale(serial_suite: Suite) -> None:
    kernel = KERNEL.replace('"run": run,', '"run": run, "source": scale,')
    a_suite(serial_suite, kernel).dump().assert_outcomes(passed=2)
    a_suite(serial_suite, kernel.replace("x * 2", "x * 3"))

    row, *_ = serial_suite.load_stale()
    assert row["changed"] == ["source"]
    assert "(scale)" in row["reason"]


def test_a_function_whose_source_cannot_be_read_gets_one_note(suite: Suite, section: Any) -> None:
    a_suite(suite, KERNEL.replace('"run": run', '"run": range')).dump()

    notes = [line for line in section(suite.load()) if "source" in line]

    assert notes == [
        "function:lib.scale: tune() found no source code in its arguments, so no edit makes the entry stale "
        "(pass source=)"
    ]


def test_a_function_without_source_but_with_version_gets_no_note(serial_suite: Suite, section: Any) -> None:
    a_suite(serial_suite, KERNEL.replace('"run": run', '"version": 1, "run": range'))

    assert not any("source" in line for line in section(serial_suite.dump()))


def test_a_choice_that_depends_on_over_500_functions_gets_a_note(serial_suite: Suite, section: Any) -> None:
    constants = "\n".join(f"C{number} = {number}" for number in range(501))
    used = " + ".join(f"C{number}" for number in range(501))
    a_suite(serial_suite, f"{constants}\n{KERNEL.replace('scale(act(config))', used)}")

    notes = [line for line in section(serial_suite.dump()) if "502" in line]

    assert notes == [
        "function:lib.scale: an edit of any of 502 functions and constants makes its choices stale: "
        "install the libraries among them with pip, so that their code is left out"
    ]
