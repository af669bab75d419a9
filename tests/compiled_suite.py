"""Suites that a real pytest runs, and whose kernels Triton compiles for an absent GPU."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import autotuners

ROOT = Path(__file__).parent.parent

CONFTEST = f"""
import gc
import sys
sys.path.insert(0, {str(ROOT)!r})

import triton
from triton.runtime import driver
from tests.test_triton_compiled import AbsentGpu

state = dict(vars(driver))
driver.set_active(AbsentGpu())
triton.compiler.compiler.max_shared_mem = lambda device: 100_000


def pytest_unconfigure():
    # Since Triton 3.9, the destructor of a kernel asks the driver to unload the kernel.
    for function in gc.get_referrers(triton.JITFunction):
        if type(function) is triton.JITFunction:
            function.device_caches.clear()
    vars(driver).update(state)
"""


class CompiledSuite:
    """A suite in a folder, with the report of its last run.

    :param compile_cache: Triton's compile cache for all runs. Without it, each run begins with an empty cache.
    """

    def __init__(self, pytester: pytest.Pytester, compile_cache: Path | None = None) -> None:
        self.compile_cache = compile_cache
        self.pytester = pytester
        self.folder = pytester.path
        self.cache = pytester.path / "cache.textproto"

    def write(self, conftest: str = "", **files: str) -> None:
        """Write test modules, ``name=text``, and a conftest.py that puts the GPU in place."""
        self.pytester.makeconftest(CONFTEST + conftest)
        self.pytester.makepyfile(**files)

    def run(self, *options: str) -> pytest.RunResult:
        """Run the suite in this process."""
        compile_cache = self.compile_cache
        if compile_cache is None:
            compile_cache = self.folder / "triton"
            shutil.rmtree(compile_cache, ignore_errors=True)
        (self.folder / "r.json").unlink(missing_ok=True)
        plugin = ["-ppytest_autotune.plugin", "--autotune-tuners=triton", "--autotune-report=r.json"]
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("PYTEST_ADDOPTS", raising=False)
            patch.delenv("TRITON_INTERPRET", raising=False)
            patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
            patch.setenv("TRITON_CACHE_DIR", str(compile_cache))
            # An earlier test may have initialised a real GPU in torch.
            patch.setattr("pytest_autotune.devices.current_gpu", lambda: None)
            result = self.pytester.runpytest("-Wignore", *plugin, *options)
        # The next run would find the choices of this run in memory.
        for autotuner in autotuners():
            autotuner.cache.clear()
        return result

    def plain(self) -> pytest.RunResult:
        """Run without the plugin."""
        return self.run("-pno:autotune")

    def dump(self, *options: str) -> pytest.RunResult:
        return self.run("--autotune-dump=cache.textproto", *options)

    def load(self, *options: str) -> pytest.RunResult:
        return self.run("--autotune-load=cache.textproto", *options)

    @property
    def report(self) -> dict[str, Any]:
        """The JSON report of the last run."""
        report: dict[str, Any] = json.loads((self.folder / "r.json").read_text())
        return report
