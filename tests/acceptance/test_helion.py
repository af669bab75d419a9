"""A suite with kernels of Helion from dump to stale: with Helion itself where it is installed, else with a toy."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.conftest import Suite

pytest.importorskip("torch")

TOY_FOLDER = Path(__file__).parent.parent / "toy_helion"
HAS_HELION = importlib.util.find_spec("helion") is not None


@pytest.fixture(scope="module", autouse=True)
def inductor_stays_imported() -> None:
    """Import Inductor before the first run in this process, which removes the modules that it was the first to import.

    Inductor imports modules that register operators. torch refuses to register them twice, in a later test file.
    """
    pytest.importorskip("torch._inductor")


KERNELS = """
import helion
import helion.language as hl
import torch
from helion.autotuner import RandomSearch


def plus(x, y):
    return x + y


class CountedSearch(RandomSearch):
    count = 0

    def _autotune(self):
        CountedSearch.count += 1
        return super()._autotune()


@helion.kernel(
    configs=[helion.Config(block_sizes=[32]), helion.Config(block_sizes=[64]), helion.Config(block_sizes=[128])]
)
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(out.size(0)):
        out[tile] = plus(x[tile], y[tile])
    return out


@helion.kernel(autotuner_fn=lambda bound_kernel, args, **kwargs: CountedSearch(bound_kernel, args, 3))
def double(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(out.size(0)):
        out[tile] = x[tile] * 2
    return out


@helion.kernel(configs=[helion.Config(block_sizes=[32]), helion.Config(block_sizes=[64])], static_shapes=False)
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(out.size(0)):
        out[tile] = x[tile] * factor
    return out
"""

#: The conftest.py of a suite without a GPU.
CONFTEST = """
import os
import time

os.environ["TRITON_INTERPRET"] = "1"
os.environ["HELION_AUTOTUNE_BENCHMARK_SUBPROCESS"] = "0"
os.environ["HELION_AUTOTUNE_IGNORE_ERRORS"] = "1"
os.environ["HELION_AUTOTUNE_PRECOMPILE"] = ""
os.environ["HELION_AUTOTUNE_PROGRESS_BAR"] = "0"

from helion.autotuner import benchmark_provider

MS = iter([3.0, 1.0, 2.0] * 1000)


def do_bench(fn, **kwargs):
    fn()
    with open(os.environ["TOY_LOG"], "a") as file:
        file.write("measured\\n")
    return next(MS)


benchmark_provider.do_bench = do_bench
"""

TESTS = """
import torch
import kernels


def test_add():
    x = torch.rand(100)
    torch.testing.assert_close(kernels.add(x, x), 2 * x)


def test_double():
    x = torch.rand(100)
    torch.testing.assert_close(kernels.double(x), 2 * x)
"""


class HelionSuite(Suite):
    """A suite with kernels of Helion, in ``kernels.py``."""

    def write_kernels(self, text: str) -> None:
        (self.folder / "kernels.py").write_text(text)


@pytest.fixture
def helion_suite(serial_suite: Suite) -> HelionSuite:
    suite = HelionSuite(serial_suite.pytester, [])
    if HAS_HELION:
        suite.pytester._method = "subprocess"  # torch refuses to register Helion's operators a second time
    else:
        (suite.folder / "helion").symlink_to(TOY_FOLDER / "helion")
    suite.pytester.makeconftest(CONFTEST)
    suite.pytester.makepyfile(test_kernels=TESTS)
    suite.write_kernels(KERNELS)
    return suite


def test_loading_the_cache_of_a_helion_suite_gives_only_hits(helion_suite: HelionSuite) -> None:
    dumped = helion_suite.dump()
    measured = len(helion_suite.tunings)
    loaded = helion_suite.report("--autotune-load=cache.textproto", "--autotune-max-misses=0")

    dumped.assert_outcomes(passed=2)
    assert measured >= 4
    assert helion_suite.tunings == []
    assert {name: count for name, count in loaded["counts"].items() if count} == {"hit": 2}


def test_editing_a_helper_of_a_kernel_makes_its_entry_stale(helion_suite: HelionSuite) -> None:
    helion_suite.dump()
    helion_suite.write_kernels(KERNELS.replace("return x + y", "return y + x"))

    loaded = helion_suite.report("--autotune-load=cache.textproto")

    rows = {row["kernel"]: row for row in loaded["lookups"]}
    assert rows["kernels.add"]["outcome"] == "stale"
    assert rows["kernels.add"]["reason"] == "source changed (plus)"
    assert rows["kernels.double"]["outcome"] == "hit"


def test_a_list_in_a_helion_config_is_readable_json_in_the_cache(helion_suite: HelionSuite) -> None:
    helion_suite.dump("-kadd")

    assert 'params { name: "block_sizes" text: "[64]" type: "json" }' in helion_suite.cache.read_text()


@pytest.mark.skipif(HAS_HELION, reason="changes the toy")
def test_helion_with_a_new_signature_tunes_without_the_plugin(helion_suite: HelionSuite) -> None:
    changed = "\nfrom helion.autotuner.base_search import BaseSearch\nBaseSearch.autotune = lambda self: None\n"
    conftest = helion_suite.folder / "conftest.py"
    conftest.write_text(conftest.read_text() + changed)
    helion_suite.pytester.makepyfile(test_kernels="def test_nothing(): pass")

    result = helion_suite.dump()

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["helion tunes without the plugin: BaseSearch.autotune of helion * has another signature"]
    )
