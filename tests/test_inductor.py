"""The adapter for Inductor: on the CPU of this machine, and for a GPU that ``absent_gpu`` makes up."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
from filelock import FileLock

pytest.importorskip("torch")
pytest.importorskip("triton")

from pytest_autotune import devices as device
from pytest_autotune.cache.model import Candidate, Device, Entry, Problem, Value, Versions
from pytest_autotune.testing import AdapterConformance
from pytest_autotune.tuners.inductor import Adapter as InductorAdapter
from pytest_autotune.tuners.inductor import identity
from pytest_autotune.tuners.inductor.benchmarks import Benchmarks
from pytest_autotune.tuners.inductor.graph_shape import PaddingDecision, Paddings
from pytest_autotune.tuners.inductor.template_key import template_key
from pytest_autotune.tuners.inductor.templates import TemplateDecision
from pytest_autotune.tuners.shared.patches import Patches
from tests import forked_torch
from tests.sessions import a_session

DUMP, LOAD = "--autotune-dump=cache.textproto", "--autotune-load=cache.textproto"

#: A user's kernel as Inductor writes it, with places for its number, its device's index, and its number again.
USER_KERNEL = """
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.hints import DeviceProperties

FACTOR = tl.constexpr(2)

@triton_heuristics.user_autotune(
    configs=[{'BLOCK': 128, 'num_warps': 8, 'num_stages': 1}, {'BLOCK': 256, 'num_warps': 4, 'num_stages': 1}],
    inductor_meta={'grid_type': 'FixedGrid', 'fixed_grid': ['_grid_0', '_grid_1', '_grid_2'],
                   'extra_launcher_args': ['_grid_0', '_grid_1', '_grid_2'], 'kernel_name': 'double_kernel_%d'},
    triton_meta={'signature': {'x': '*fp32', 'n': 'i32', 'BLOCK': 'constexpr'}, 'constants': {}, 'configs': [{}],
                 'device': DeviceProperties(type='cuda', index=%d, multi_processor_count=132, cc=90, major=9,
                     regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048,
                     max_threads_per_block=1024, warp_size=32)},
    filename=__file__,
    custom_kernel=True,
)
@triton.jit
def double_kernel_%d(x, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + offsets, FACTOR * tl.load(x + offsets, mask=offsets < n), mask=offsets < n)
"""

GPU_SUITE = f"""
USER_KERNEL = {USER_KERNEL!r}
"""
GPU_SUITE += """
import absent_gpu
import json, os, pytest, torch
from absent_gpu import code, compile_worker, compiled, launch
from contextlib import suppress
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.utils import fresh_cache
from triton import knobs

FACTS, COMPILED_HERE = {}, []
# A forked run has imported Inductor, which read the variable, before it had the variable.
if "TORCHINDUCTOR_COMPILE_THREADS" in os.environ:
    config.compile_threads = int(os.environ["TORCHINDUCTOR_COMPILE_THREADS"])
knobs.compilation.listener = lambda *, cache_hit, **rest: None if cache_hit else COMPILED_HERE.append(1)

def mlp(x, w, b):
    return torch.relu(x @ w + b)

def softmax(x, y):
    return torch.softmax(torch.relu(x + y), -1)

def softmax_second(x, y, z):
    return torch.sigmoid(z) * 2, torch.softmax(torch.relu(x + y), -1)

@pytest.fixture(autouse=True)
def facts(request):
    measured, compilations, here = map(len, (absent_gpu.measurements, absent_gpu.compilations, COMPILED_HERE))
    facts = FACTS[request.node.name] = {}
    facts["caches"] = [config.fx_graph_cache, torch.compiler.config.cache_key_tag[:16]]
    with config.patch(max_autotune=True, coordinate_descent_tuning="NO_DESCENT" not in os.environ):
        yield facts
    facts["measurements"] = absent_gpu.measurements[measured:]
    facts["compilations"] = absent_gpu.compilations[compilations:]
    facts["compiled here"] = len(COMPILED_HERE) - here
    facts["threads"] = sorted(set(absent_gpu.compiling_threads[compilations:]))
    with open(os.environ["FACTS"] + os.environ.get("PYTEST_XDIST_WORKER", ""), "w") as file:
        json.dump(FACTS, file)

def call(facts, module):
    facts.update(chosen=launch(module), code=code(module))

def user_kernel(facts, number, device):
    kernel = AsyncCompile().triton(f"double_kernel_{number}", USER_KERNEL % (number, device, number))
    kernel.run(1, 1, 1, 1, 1, stream=0)
    facts.update(chosen={"double_kernel": str(kernel.launchers[0].config)})

def test_mlp(facts):
    call(facts, compiled(mlp, (512, 256), (256, 512), (512,)))

def test_softmax(facts):
    call(facts, compiled(softmax, (1000, 128), (1000, 128)))

def test_softmax_in_a_second_graph(facts):
    call(facts, compiled(softmax, (1000, 128), (1000, 128)))

def test_softmax_on_another_device_and_with_another_number(facts):
    facts["chosen"] = launch(compiled(softmax_second, (1000, 128), (1000, 128), (64,), device="cuda:1"), "softmax")

def test_softmax_of_another_dtype(facts):
    with config.patch(coordinate_descent_tuning=False):
        call(facts, compiled(softmax, (1000, 128), (1000, 128), dtype=torch.float16))

def test_softmax_in_a_fresh_cache(facts):
    with fresh_cache():
        call(facts, compiled(softmax, (1000, 128), (1000, 128)))

def test_softmax_without_caches(facts):
    with config.patch(force_disable_caches=True):
        call(facts, compiled(softmax, (1000, 128), (1000, 128)))

def test_softmax_when_deterministic(facts):
    with config.patch(deterministic=True):
        call(facts, compiled(softmax, (1000, 128), (1000, 128)))

def test_compiled_by_a_worker(facts):
    with compile_worker():
        call(facts, compiled(softmax, (2000, 128), (2000, 128)))

def test_skipped_in_a_search(facts, monkeypatch):
    with config.patch(coordinate_descent_tuning=False):
        module = compiled(lambda x: torch.tanh(x).sum(-1), (1000, 128))
        with monkeypatch.context() as patched, suppress(pytest.skip.Exception):
            patched.setattr(absent_gpu._Launcher, "__call__", lambda *args, **kwargs: pytest.skip("for now"))
            launch(module)
        call(facts, module)

def test_user_kernel(facts):
    user_kernel(facts, 3, 0)

def test_user_kernel_elsewhere(facts):
    user_kernel(facts, 5, 1)
"""

TEMPLATE_SUITE = """
import absent_gpu
import json, os, pytest, torch, torch.nn.functional as F
from absent_gpu import compiled, launch
from torch._inductor import config

absent_gpu.compile_nothing()
FACTS = {}

@pytest.fixture(autouse=True)
def facts(request):
    measured = len(absent_gpu.measurements)
    yield
    lines = absent_gpu.measurements[measured:]
    FACTS[request.node.name] = sum(line.startswith("template") for line in lines)
    with open(os.environ["FACTS"], "w") as file:
        json.dump(FACTS, file)

def call(function, *shapes, launches=True, **settings):
    with config.patch({"max_autotune_gemm": True, **settings.pop("config", {})}):
        module = compiled(function, *shapes, dtype=torch.float16, **settings)
        if launches:
            launch(module)

@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (1, 1), (2, 1)])
def test_convolution(stride, padding):
    shapes, descent = [(4, 32, 64, 64), (32, 32, 3, 3)], {"coordinate_descent_tuning": True}
    call(lambda x, w: F.conv2d(x, w, stride=stride, padding=padding), *shapes, launches=False, config=descent)

@pytest.mark.parametrize("dynamic", [False, True])
def test_product(dynamic):
    call(lambda x, w: torch.relu(x @ w), (512, 256), (256, 512), dynamic=dynamic)

def test_product_by_templates_alone():
    backends = {"max_autotune_gemm_backends": "TRITON"}
    call(lambda x, w: torch.relu(x @ w), (512, 256), (256, 512), config=backends)

@pytest.mark.parametrize("beta", [1, 2])
def test_scaled_sum(beta):
    call(lambda b, x, w: torch.addmm(b, x, w, beta=beta), (512,), (512, 256), (256, 512))
"""

CPU_SUITE = """
import json, os, torch
import torch._inductor.select_algorithm as select_algorithm

measured = []
benchmark = select_algorithm.AlgorithmSelectorCache.benchmark

def counted(self, choices, *args, **kwargs):
    measured.append(len(choices))
    return benchmark(self, choices, *args, **kwargs)

select_algorithm.AlgorithmSelectorCache.benchmark = counted

def test_bmm():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(8, 128, 96, generator=generator), torch.randn(8, 96, 64, generator=generator)
    options = {"max_autotune": True, "max_autotune_gemm_backends": "CPP,ATEN"}
    result = torch.compile(lambda a, b: torch.relu(torch.bmm(a, b)), options=options)(a, b)
    torch.testing.assert_close(result, torch.relu(torch.bmm(a, b)))
    with open(os.environ["FACTS"], "w") as file:
        json.dump({"measured": measured}, file)
"""


class Run:
    """A run of pytest on a suite: its output, its JSON report, and the facts that its tests wrote.

    :param imports: whether the run imports torch itself. Other runs are forked from a process that imported torch.
    :param timeout_s: the seconds after which a run that imports torch is killed, with its workers.
    """

    def __init__(
        self,
        folder: Path,
        *args: str,
        imports: bool = False,
        timeout_s: float = forked_torch.TIMEOUT_S,
        **environment: str | None,
    ) -> None:
        facts = folder / "facts.json"
        for old_facts in folder.glob("facts.json*"):
            old_facts.unlink()
        changed: dict[str, str | None] = {
            **forked_torch.ENVIRONMENT,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "TRITON_CACHE_DIR": str(folder / "triton"),
            "COLUMNS": "400",
            "FACTS": str(facts),
            "PYTEST_ADDOPTS": None,
            "PYTEST_XDIST_WORKER": None,
            "TRITON_INTERPRET": None,
            **environment,
        }
        variables = {name: value for name, value in os.environ.items() if name not in changed}
        variables |= {name: value for name, value in changed.items() if value is not None}
        options = ["-ppytest_autotune.plugin", "--autotune-report=report.json", "-Wignore", "--show-capture=no", *args]
        if imports:
            status, self.output = self._start(folder, options, variables, timeout_s)
        else:
            status, self.output = forked_torch.run_pytest(folder, options, variables)
        assert status == 0, self.output[-4000:]
        self.report: dict[str, Any] = json.loads((folder / "report.json").read_text())
        self.facts: dict[str, Any] = {}
        for file in sorted(folder.glob("facts.json*")):
            self.facts[file.suffix.removeprefix(".json")] = json.loads(file.read_text())
        self.cache = ""
        cache = folder / "cache.textproto"
        if cache.exists():
            self.cache = cache.read_text()
        assert not self.report["untracked"]

    @staticmethod
    def _start(folder: Path, options: list[str], variables: dict[str, str], timeout_s: float) -> tuple[int, str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options],
            cwd=folder,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        ending = threading.Timer(timeout_s, os.killpg, (process.pid, signal.SIGKILL))
        ending.start()
        output, _ = process.communicate()
        ending.cancel()
        return process.returncode, output

    @property
    def counts(self) -> dict[str, int]:
        return self.report["counts"]  # type: ignore[no-any-return]

    def facts_of(self, test: str, worker: str = "") -> dict[str, Any]:
        return self.facts[worker][test]  # type: ignore[no-any-return]

    def rows(self, tuner: str) -> list[dict[str, Any]]:
        return [row for row in self.report["lookups"] if row["tuner"] == tuner]


class Runs:
    """A run that dumps and a run that loads, in processes of their own. Inductor's own caches are empty.

    :param imports: whether the load imports torch itself.
    """

    def __init__(self, folder: Path, suite: str, imports: bool) -> None:
        self.folder = folder
        (folder / "test_compiled.py").write_text(suite)
        self.dump = Run(folder, DUMP)
        (folder / "inductor").rename(folder / "inductor of the dump")
        self.load = Run(
            folder,
            LOAD,
            "--autotune-max-misses=0",
            imports=imports,
            TRITON_CACHE_DIR=str(folder / "triton 2"),
            TORCHINDUCTOR_COMPILE_THREADS=None,
        )


def shared_runs(tmp_path_factory: pytest.TempPathFactory, name: str, suite: str, imports: bool = False) -> Runs:
    """Return the runs of a suite. All workers of these tests share the runs."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder = root / f"inductor-{name}"
    with FileLock(root / f"inductor-{name}.lock"):
        pickled = folder / "runs.pickle"
        if not pickled.exists():
            shutil.rmtree(folder, ignore_errors=True)
            users_cache = folder / "inductor" / "cache"
            users_cache.mkdir(parents=True)
            (users_cache / "users_file").write_text("the user's text")
            pickled.write_bytes(pickle.dumps(Runs(folder, suite, imports)))
        runs: Runs = pickle.loads(pickled.read_bytes())
        return runs


@pytest.fixture(scope="module")
def gpu_runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return shared_runs(tmp_path_factory, "gpu", GPU_SUITE, imports=True)


@pytest.fixture(scope="module")
def template_runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return shared_runs(tmp_path_factory, "templates", TEMPLATE_SUITE)


@pytest.fixture(scope="module")
def cpu_runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return shared_runs(tmp_path_factory, "cpu", CPU_SUITE)


def load_changed(
    folder: Path,
    runs: Runs,
    old: str,
    new: str,
    tests: str,
    compile_threads: str | None = "1",
    **environment: str,
) -> Run:
    """Load the cache of the dump, after one text in the cache was replaced by another."""
    assert old in runs.dump.cache
    (folder / "test_compiled.py").write_text(GPU_SUITE)
    (folder / "cache.textproto").write_text(runs.dump.cache.replace(old, new))
    environment |= {"TRITON_CACHE_DIR": str(runs.folder / "triton")}  # with the kernels that the dump compiled
    return Run(folder, LOAD, "-k", tests, TORCHINDUCTOR_COMPILE_THREADS=compile_threads, **environment)


TESTS = re.findall(r"^def (test_\w+)", GPU_SUITE, re.MULTILINE)


def test_a_load_of_a_torch_compile_dump_measures_nothing(gpu_runs: Runs) -> None:
    dumped = [gpu_runs.dump.facts_of(test)["measurements"] for test in TESTS]
    loaded = [gpu_runs.load.facts_of(test)["measurements"] for test in TESTS]

    assert all(dumped[TESTS.index(test)] for test in ("test_mlp", "test_softmax", "test_user_kernel"))
    assert loaded == [[] for _ in TESTS]
    assert gpu_runs.load.counts["hit"] == gpu_runs.dump.counts["tuned"] > 5
    assert gpu_runs.load.report["tuning_seconds"] == 0


def test_a_tuning_ended_by_a_skip_is_repeated_at_the_next_launch(gpu_runs: Runs) -> None:
    assert gpu_runs.dump.facts_of("test_skipped_in_a_search")["measurements"]
    assert gpu_runs.dump.counts["unrecorded"] == 0


@pytest.mark.parametrize("test", TESTS)
def test_a_load_generates_the_same_code_and_choices_as_the_dump(gpu_runs: Runs, test: str) -> None:
    dumped, loaded = gpu_runs.dump.facts_of(test), gpu_runs.load.facts_of(test)

    assert loaded["chosen"] == dumped["chosen"] != {}
    assert loaded.get("code") == dumped.get("code")


def test_an_inductor_choice_found_by_coordinate_descent_is_a_hit(gpu_runs: Runs) -> None:
    (chosen,) = gpu_runs.load.facts_of("test_softmax")["chosen"].values()
    (row,) = [row for row in gpu_runs.dump.rows("inductor.config") if row["key"].get("xnumel") == 1000][:1]

    assert chosen.startswith("XBLOCK: 16,")
    assert row["choice"]["params"] == {"XBLOCK": 16, "num_warps": 8, "num_stages": 1}
    assert len(row["candidates"]) > 2


def test_an_inductor_hit_compiles_only_the_chosen_config(gpu_runs: Runs) -> None:
    assert len(gpu_runs.dump.facts_of("test_softmax")["compilations"]) > 2
    assert len(gpu_runs.load.facts_of("test_softmax")["compilations"]) == 1
    assert len(gpu_runs.load.facts_of("test_mlp")["compilations"]) == 1


@pytest.mark.parametrize(
    "test",
    [
        "test_softmax_in_a_second_graph",
        "test_softmax_on_another_device_and_with_another_number",
        "test_softmax_in_a_fresh_cache",
        "test_softmax_without_caches",
        "test_user_kernel_elsewhere",
    ],
)
def test_a_kernel_is_measured_once_across_graphs_and_cache_dirs(gpu_runs: Runs, test: str) -> None:
    measured = [line for line in gpu_runs.dump.facts_of(test)["measurements"] if "XBLOCK: 16" in line]
    first = gpu_runs.dump.facts_of("test_user_kernel" if "user" in test else "test_softmax")

    assert set(gpu_runs.dump.facts_of(test)["chosen"].values()) == set(first["chosen"].values())
    assert measured == [] or "another_number" in test


def test_kernels_of_two_shapes_or_dtypes_are_different_problems(gpu_runs: Runs) -> None:
    softmaxes = [row for row in gpu_runs.dump.rows("inductor.config") if "softmax" in row["kernel"]]

    assert {row["key"]["xnumel"] for row in softmaxes} == {1000, 2000}
    assert len({row["key"]["code"] for row in softmaxes if row["key"]["xnumel"] == 1000}) == 2
    assert {row["label"] for row in softmaxes} == {"fp32", "fp16"}


def test_an_inductor_matmul_entry_has_the_times_of_all_templates(gpu_runs: Runs) -> None:
    (row,) = gpu_runs.dump.rows("inductor.template")

    assert row["kernel"] == "mm"
    assert row["key"] == {"inputs": "cuda float32[512, 256], cuda float32[256, 512]", "precision": "highest"}
    assert len(row["candidates"]) > 10
    assert gpu_runs.dump.cache.count("  candidates {") >= len(row["candidates"])
    assert any("BLOCK_M=64" in candidate["label"] for candidate in row["candidates"])


def test_each_measured_fusion_gets_an_entry_with_a_time(gpu_runs: Runs) -> None:
    rows = gpu_runs.dump.rows("inductor.fusion")

    assert [row["kernel"] for row in rows] == ["triton_poi_fused_add_relu", "triton_tem_fused_add_mm_relu"]
    assert all(len(row["candidates"]) == 1 and row["candidates"][0]["time_us"] > 0 for row in rows)
    assert {row["label"] for row in rows} == {"whether to fuse"}


@pytest.mark.skipif(device.count_usable_cores() < 2, reason="compiles in threads only with two cores or more")
def test_a_load_compiles_kernels_in_threads_and_a_dump_does_not(gpu_runs: Runs) -> None:
    assert gpu_runs.dump.facts_of("test_softmax")["threads"] == ["MainThread"]
    for test in ("test_softmax", "test_mlp", "test_user_kernel"):
        threads = gpu_runs.load.facts_of(test)["threads"]
        assert threads
        assert all(thread.startswith("pytest-autotune-compile") for thread in threads)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")
def test_a_dump_compiles_inductor_candidates_in_forked_children(gpu_runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "test_compiled.py").write_text(GPU_SUITE)
    options = (DUMP, "-k", "test_softmax and not test_softmax_")

    run = Run(tmp_path, *options, TORCHINDUCTOR_COMPILE_THREADS="2")

    alone = gpu_runs.dump.facts_of("test_softmax")
    assert run.facts_of("test_softmax")["compiled here"] < alone["compiled here"]
    assert run.facts_of("test_softmax")["chosen"] == alone["chosen"]
    assert list((tmp_path / "triton").rglob("*.cubin"))


@pytest.mark.parametrize("compile_threads", ["1", None], ids=["at once", "in threads"])
def test_an_inductor_choice_that_does_not_compile_is_stale(
    gpu_runs: Runs, tmp_path: Path, compile_threads: str | None
) -> None:
    run = load_changed(
        tmp_path,
        gpu_runs,
        'name: "XBLOCK" int: 16 }',
        'name: "XBLOCK" int: 64 }',
        "test_softmax and not test_softmax_ or test_compiled_by_a_worker",
        compile_threads,
        DOES_NOT_FIT="XBLOCK: 64, num_warps: 8",
    )

    for test in ("test_softmax", "test_compiled_by_a_worker"):
        assert run.facts_of(test)["chosen"] == gpu_runs.dump.facts_of(test)["chosen"]
        assert run.facts_of(test)["measurements"]
    assert run.counts["stale"] == run.counts["tuned"] == 2
    assert re.search(r"STALE .*triton_per_fused__softmax_add_relu .*: the choice does not compile: ", run.output)


def test_inductor_tunes_anew_under_another_setting_of_triton(gpu_runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "test_compiled.py").write_text(GPU_SUITE)
    (tmp_path / "cache.textproto").write_text(gpu_runs.dump.cache)

    run = Run(tmp_path, LOAD, "-k", "test_mlp or test_user_kernel", TRITON_F32_DEFAULT="ieee")

    assert run.counts["hit"] == 0
    for tuner in ("inductor.config", "inductor.template", "inductor.fusion"):
        rows = run.rows(tuner)
        assert rows
        assert all("TRITON_F32_DEFAULT=ieee" in row["key"]["settings"] for row in rows)


WITHOUT_CACHES_SUITE = """
import absent_gpu
import json, os, torch
from absent_gpu import compile_worker, compiled, launch
from contextlib import nullcontext
from torch._inductor import config

def test_softmax():
    with config.patch(max_autotune=True, force_disable_caches=True):
        with compile_worker() if "WORKER" in os.environ else nullcontext():
            launch(compiled(lambda x: torch.softmax(x, -1), (1000, 128)))
    with open(os.environ["FACTS"], "w") as file:
        json.dump({"test_softmax": {"measurements": absent_gpu.measurements}}, file)
"""


def test_without_caches_a_candidate_a_worker_dropped_is_no_miss(tmp_path: Path) -> None:
    """The dump compiles in a worker, which cannot compile a candidate. The load has the whole list of candidates."""
    (tmp_path / "test_compiled.py").write_text(WITHOUT_CACHES_SUITE)

    dump = Run(tmp_path, DUMP, WORKER="1", DOES_NOT_FIT="XBLOCK: 1,")
    load = Run(tmp_path, LOAD)

    assert dump.facts_of("test_softmax")["measurements"]
    assert load.counts["hit"] == 1
    assert not load.facts_of("test_softmax")["measurements"]


def test_each_inductor_template_is_measured_once_and_then_a_hit(template_runs: Runs) -> None:
    dumped, loaded = template_runs.dump.facts[""], template_runs.load.facts[""]

    assert [test for test, number in dumped.items() if number == 0] == []
    assert {test: number for test, number in loaded.items() if number} == {}
    assert len(template_runs.dump.rows("inductor.template")) == len(dumped)
    assert template_runs.load.report["tuning_seconds"] == 0


def test_a_compiled_kernel_that_is_never_launched_is_no_miss(template_runs: Runs) -> None:
    for run in (template_runs.dump, template_runs.load):
        assert run.rows("inductor.config") == []


def test_the_key_of_a_template_lists_inputs_and_arguments(template_runs: Runs) -> None:
    keys = [row["key"] for row in template_runs.dump.rows("inductor.template")]
    inputs = "cuda float16[512, 256], cuda float16[256, 512]"
    convolutions = [key for key in keys if "stride" in key]

    assert {"inputs": inputs, "precision": "highest"} in keys  # the key of the entries of earlier versions
    assert sorted(sorted(key) for key in keys if "strides [0, 1]" in key["inputs"]) == [
        ["beta", "inputs", "precision"],
        ["inputs", "precision"],
    ]
    assert [key["sizes"] for key in keys if "sizes" in key] == ["[s0, s1] strides [s1, 1], [s1, s0] strides [s0, 1]"]
    assert [key["settings"] for key in keys if "settings" in key] == ["max_autotune_gemm_backends=TRITON"]
    assert [key["beta"] for key in keys if "beta" in key] == [2]
    assert {key["stride"] for key in convolutions} == {"(1, 1)", "(2, 2)"}
    assert {key["padding"] for key in convolutions} == {"(0, 0)", "(1, 1)"}


def test_the_choice_of_a_cpu_template_is_dumped_and_then_a_hit(cpu_runs: Runs) -> None:
    (row,) = cpu_runs.dump.rows("inductor.template")

    assert cpu_runs.dump.facts[""]["measured"] == [2]
    assert cpu_runs.load.facts[""]["measured"] == []
    assert cpu_runs.load.counts["hit"] == 1
    assert row["kernel"] == "bmm"
    assert row["key"]["inputs"] == "cpu float32[8, 128, 96], cpu float32[8, 96, 64]"
    assert row["device"].endswith("-1")  # torch uses one thread
    assert {candidate["label"].split()[0] for candidate in row["candidates"]} == {"CppTemplate", "ExternKernel"}


def test_a_run_writes_no_graph_cache_and_keeps_a_users_file(cpu_runs: Runs) -> None:
    for folder in (cpu_runs.folder / "inductor of the dump", cpu_runs.folder / "inductor"):
        assert not list(folder.glob("fxgraph*"))
        assert not list(folder.glob("aotautograd*"))
    files = list((cpu_runs.folder / "inductor of the dump" / "cache").iterdir())
    assert [file.name for file in files] == ["users_file"]
    assert files[0].read_text() == "the user's text"


MARKED_SUITE = """
import pytest, torch
from torch._inductor import graph

codes = []
compile_to_module = graph.GraphLowering.compile_to_module

def keep_code(self):
    module = compile_to_module(self)
    with open(module.__file__) as file:
        codes.append(file.read())
    return module

graph.GraphLowering.compile_to_module = keep_code
generator = torch.Generator().manual_seed(0)
a, b = torch.randn(8, 128, 96, generator=generator), torch.randn(8, 96, 64, generator=generator)
options = {"max_autotune": True, "max_autotune_gemm_backends": "CPP,ATEN"}
compiled = torch.compile(lambda a, b: torch.relu(torch.bmm(a, b)), options=options)

def calls_the_library():
    codes.clear()
    compiled(a, b)
    return ["extern_kernels.bmm" in code for code in codes]

def test_1_with_the_cache_of_the_run():
    assert calls_the_library() == [True]
    assert calls_the_library() == []  # compiled already

@pytest.mark.autotune_cache(load="template.textproto")
def test_2_with_a_cache_of_its_own():
    assert calls_the_library() == [False]

def test_3_with_the_cache_of_the_run_again():
    assert calls_the_library() == [True]
"""


def test_torch_compile_uses_the_cache_that_a_marker_names(cpu_runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "test_marked.py").write_text(MARKED_SUITE)
    # With the C++ code that the dump compiled. It has no decisions.
    shutil.copytree(cpu_runs.folder / "inductor of the dump", tmp_path / "inductor")
    for name, slow in (("cache", "CppTemplate"), ("template", "ExternKernel")):
        text = re.sub(rf'(time_us: )[\d.]+( label: "{slow})', r"\g<1>999999\2", cpu_runs.dump.cache)
        (tmp_path / f"{name}.textproto").write_text(text)

    run = Run(tmp_path, LOAD, "--autotune-max-misses=0")

    assert run.counts["hit"] == 1
    assert run.report["tuning_seconds"] == 0


SETTINGS = """
import torch, torch._inductor.config, torch.compiler.config

def test_settings():
    assert (torch._inductor.config.fx_graph_cache, torch.compiler.config.cache_key_tag) == (True, "")
"""


def test_without_inductor_entries_torch_keeps_its_graph_caches(tmp_path: Path) -> None:
    (tmp_path / "test_settings.py").write_text(SETTINGS)
    (tmp_path / "cache.textproto").write_text("format_version: 1\n")

    Run(tmp_path, LOAD)


# Parts of the adapter without torch's compiler.

H200 = Device("NVIDIA H200", "sm_90", 132)


@pytest.fixture
def on_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_autotune.tuners.inductor.graph_shape.device_of", lambda *args: H200)
    monkeypatch.setattr("pytest_autotune.tuners.inductor.graph_shape.versions", lambda: Versions.parse("torch 2.13.0"))


class PadModule(ModuleType):
    """Stands in for Inductor's module about padding, and calls its functions in the same order."""

    def __init__(self) -> None:
        super().__init__("torch._inductor.fx_passes.pad_mm")
        self.measured = 0
        self.unpadded_measured = 0
        self.cached: dict[str, Any] = {}
        self.config = SimpleNamespace(
            deterministic=False, post_grad_fusion_options={}, use_autoheuristic=lambda name: False
        )
        self.torch: Any = SimpleNamespace(
            _inductor=SimpleNamespace(config=self.config),
            are_deterministic_algorithms_enabled=lambda: False,
        )

        def should_pad(match: Any, mat1: Any, mat2: Any, op: Any, input: Any = None) -> Any:
            return self._should_pad(match, mat1, mat2, op, input)

        def measure_padding(match: Any, mat1: Any, mat2: Any, op: Any, input: Any = None) -> Any:
            decision = self.get_cached_should_pad(match)
            if decision is not None:
                return decision
            if self.get_cached_base_mm_benchmark_time("base") is None:
                self.unpadded_measured += 1
                self.set_cached_base_mm_benchmark_time("base", 2.0)
            self.measured += 1
            self.set_cached_should_pad(match, True)
            return True

        self.should_pad: Any = should_pad
        self._should_pad: Any = measure_padding
        self.get_cached_should_pad: Any = lambda key: self.cached.get(key)
        self.set_cached_should_pad: Any = lambda key, value: self.cached.update({key: value})
        self.get_cached_base_mm_benchmark_time: Any = lambda key: self.cached.get(key)
        self.set_cached_base_mm_benchmark_time: Any = lambda key, value: self.cached.update({key: value})


MATRIX = SimpleNamespace(device=SimpleNamespace(type="cuda", index=0))


@pytest.mark.usefixtures("on_h200")
class TestConformance(AdapterConformance):
    """The conformance kit on the decisions whether to pad."""

    tuner = "inductor"
    adapter = InductorAdapter
    exempt: ClassVar[Mapping[str, str]] = {
        "test_an_entry_with_another_fingerprint_is_stale_and_retuned": "the body of a kernel is its identity",
        "test_an_entry_whose_choice_is_no_candidate_is_stale": "it is padded or not: both are always on offer",
        "test_two_sweeps_run_two_candidates_without_a_search": "whether to pad is no part of a sweep",
        "test_verify_races_a_loaded_choice_and_uses_it": "nor is it raced again",
    }

    @pytest.fixture(autouse=True)
    def module(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._module = PadModule()
        monkeypatch.setitem(sys.modules, self._module.__name__, self._module)

    def tune(self) -> object:
        return self._module.should_pad("key", MATRIX, MATRIX, "aten.mm")

    def forget(self) -> None:
        self._module.cached.clear()

    def searches(self) -> int:
        return self._module.measured


class Symbol:
    """Stands in for a symbolic size, which is known when the graph is called."""

    def __init__(self, hint: int) -> None:
        self.node = SimpleNamespace(hint=hint)


@pytest.mark.usefixtures("on_h200")
def test_a_padded_matmul_key_has_symbolic_sizes_and_settings() -> None:
    module = PadModule()
    run, looked_up = a_session(is_dumping=True)
    Paddings(Benchmarks()).hook(module, run, Patches(run, "inductor.pad_mm"))

    def key(size: object) -> tuple[Value, ...]:
        module.should_pad("key", SimpleNamespace(device=MATRIX.device, shape=(size, 8)), MATRIX, "aten.mm")
        return looked_up[-1].problem.key

    assert key(4) == (Value("inputs", "key"),)
    assert key(Symbol(4)) == (Value("inputs", "key"), Value("sizes", "[4, 8], []"))
    assert key(Symbol(4)) != key(Symbol(512))
    module.torch.are_deterministic_algorithms_enabled = lambda: True
    assert key(4)[-1] == Value("settings", "deterministic algorithms", "settings")


@pytest.mark.usefixtures("on_h200")
def test_a_padding_key_has_the_settings_that_decide_about_it() -> None:
    module = PadModule()
    run, looked_up = a_session(is_dumping=True)
    Paddings(Benchmarks()).hook(module, run, Patches(run, "inductor.pad_mm"))

    def key(op: str = "aten.mm") -> tuple[Value, ...]:
        module.should_pad("key", MATRIX, MATRIX, op)
        return looked_up[-1].problem.key

    module.config.post_grad_fusion_options = {"shape_padding_multiplier": {"value": 1.1}}
    assert key() == (Value("inputs", "key"),)
    module.config.post_grad_fusion_options = {"shape_padding_multiplier": {"value": 3.0}}
    assert key() == (Value("inputs", "key"), Value("settings", "shape_padding_multiplier=3.0", "settings"))
    module.config.post_grad_fusion_options = {}
    module.config.use_autoheuristic = lambda name: name == "pad_mm"
    assert key() == (Value("inputs", "key"), Value("settings", "autoheuristic_use=pad_mm", "settings"))
    assert key("aten.addmm") == (Value("inputs", "key"),)  # Inductor's heuristic is for aten.mm only


def test_an_unpadded_time_counts_only_for_its_settings_and_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pytest_autotune.tuners.inductor.graph_shape.device_of",
        lambda kind, index: Device(f"GPU {index}", "sm_90", 132),
    )
    module = PadModule()
    run, _ = a_session(is_dumping=True)
    Paddings(Benchmarks()).hook(module, run, Patches(run, "inductor.pad_mm"))
    other_matrix = SimpleNamespace(device=SimpleNamespace(type="cuda", index=1))

    module.should_pad("key", MATRIX, MATRIX, "aten.mm")
    module.should_pad("another key", MATRIX, MATRIX, "aten.mm")
    assert (module.measured, module.unpadded_measured) == (2, 1)

    module.should_pad("key", other_matrix, other_matrix, "aten.mm")
    assert (module.measured, module.unpadded_measured) == (3, 2)

    module.torch.backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_fp16_accumulation=True)))
    module.should_pad("key", MATRIX, MATRIX, "aten.mm")
    assert (module.measured, module.unpadded_measured) == (4, 3)


@pytest.mark.usefixtures("on_h200")
def test_torchs_memoizer_does_not_answer_a_padding_question(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch._inductor.runtime.caching.memoizers")
    import torch._inductor.runtime.caching.interfaces as caching

    monkeypatch.setattr(caching.config, "IS_CACHING_MODULE_ENABLED", lambda: True)
    module = PadModule()
    memoizer = caching.Memoizer()
    memoized = memoizer.memoize(lambda match, *arguments, **options: str(match))(module._should_pad)
    module._should_pad = memoized
    run, looked_up = a_session(is_dumping=True)
    patches = Patches(run, "inductor.pad_mm")
    module.should_pad("key in the memoizer", MATRIX, MATRIX, "aten.mm")
    Paddings(Benchmarks()).hook(module, run, patches)

    module.should_pad("key in the memoizer", MATRIX, MATRIX, "aten.mm")
    module.should_pad("new key", MATRIX, MATRIX, "aten.mm")

    assert [lookup.problem.key[0].value for lookup in looked_up] == ["key in the memoizer", "new key"]
    patches.undo()
    assert module._should_pad is memoized
    replay = memoizer.replay(lambda match: match)(memoized)
    assert replay("key in the memoizer") is True
    with pytest.raises(KeyError):
        replay("new key")


def test_other_threads_do_not_see_the_current_padding_decision() -> None:
    paddings = Paddings(Benchmarks())
    decision = PaddingDecision(None, "aten.mm", MATRIX.device, "")  # type: ignore[arg-type]

    with paddings.deciding(decision), ThreadPoolExecutor(1) as pool:
        assert paddings.decision is decision
        assert pool.submit(getattr, paddings, "decision").result() is None
    assert paddings.decision is None


def template(template_id: str, name: str, description: str = "") -> Any:
    class TemplateCaller:
        layout = SimpleNamespace(device=SimpleNamespace(type="cuda", index=0))

        def hash_key(self) -> str:
            return template_id

    choice: Any = TemplateCaller()
    choice.name, choice.description = name, description
    return choice


def template_entry(*candidates: Candidate) -> Entry:
    return Entry(Problem("inductor.template", "mm", (), H200), candidates=candidates)


def test_a_renamed_template_is_found_by_its_description() -> None:
    same, renamed, new = template("a-1", "mm_1"), template("b-2", "mm_2", "BLOCK=2"), template("c-3", "mm_3", "BLOCK=3")
    decision = TemplateDecision([same, renamed, new])
    entry = template_entry(
        Candidate("a-1", time_us=2.0, label="Template mm"), Candidate("old", time_us=1.0, label="Template mm: BLOCK=2")
    )

    assert decision.find_winner(entry) is renamed
    assert decision.find_times_ms(entry) == {same: 0.002, renamed: 0.001, new: float("inf")}


def test_the_inductor_template_that_a_sweep_picks_is_used() -> None:
    first, second = template("a-1", "mm_1"), template("b-2", "mm_2", "BLOCK=2")
    decision = TemplateDecision([first, second])
    candidates = decision.list_candidates()
    picked = replace(template_entry(), choice=candidates[1], candidates=tuple(candidates))

    assert decision.find_winner(picked) is second
    assert decision.find_times_ms(picked) == {first: float("inf"), second: 1.0}


@pytest.mark.parametrize(("tuned_with", "compiles"), [("torch 2.11.0", False), ("torch 2.11.0", True), ("now", False)])
def test_choice_of_another_torch_version_is_compiled_before_use(tuned_with: str, compiles: bool) -> None:
    compilations = []

    def precompile() -> None:
        compilations.append(True)
        if not compiles:
            raise RuntimeError("out of resource\nmore")

    fastest = template("a", "mm_1")
    fastest.precompile = precompile
    versions = Versions.parse(tuned_with)
    if tuned_with == "now":
        versions = identity.versions()
    entry = replace(template_entry(Candidate("a", time_us=1.0, label="Template mm")), versions=versions)

    reason = TemplateDecision([fastest]).explain_failed_compilation(entry)

    assert bool(compilations) is (tuned_with != "now")
    if compiles or tuned_with == "now":
        assert reason == ""
    else:
        assert reason == "the choice does not compile: RuntimeError: out of resource"


def combined_kernel(*blocks: int) -> Any:
    """Return the autotuner of a combined kernel, whose configurations have these blocks."""
    import triton

    configs = [triton.Config({"XBLOCK": block}, num_warps=4, num_stages=2) for block in blocks]
    meta = {
        "combo_tuning_groups": [{"member_indices": [0, 1], "configs": configs, "skip_rblock": False}],
        "combo_warp_stage_candidates": [(8, 3)],
    }
    return SimpleNamespace(
        heuristic_type=SimpleNamespace(name="POINTWISE"),
        inductor_meta=meta,
        triton_meta={},
        size_hints={"x": 65536},
        filename=None,
        fn=SimpleNamespace(src="def triton_combo(x):\n    xnumel = 8\n", __name__="triton_combo"),
    )


def test_a_combined_kernel_has_the_same_key_in_every_process() -> None:
    assert identity.kernel_key(combined_kernel(64, 128), "list") == identity.kernel_key(
        combined_kernel(64, 128), "list"
    )
    assert identity.kernel_key(combined_kernel(64, 128), "list") != identity.kernel_key(
        combined_kernel(64, 256), "list"
    )


#: A module of a user's kernel, as Inductor writes it: the import below the kernel is for the user's ``act = tl.erf``.
USER_MODULE = """
import triton
import triton.language as tl
from torch._inductor.runtime.triton_helpers import libdevice

@triton.jit
def act_kernel(x, BLOCK: tl.constexpr):
    tl.store(x, act(tl.load(x)))
    tl.static_assert(BLOCK > 8, f"{BLOCK} is too small")
from triton.language.math import erf as act
"""


def user_kernel_key(folder: Path, source: str) -> tuple[Value, ...]:
    """Return the key of the kernel in a module with this source."""
    module = folder / "module.py"
    module.write_text(source)
    kernel = SimpleNamespace(
        heuristic_type=SimpleNamespace(name="USER_AUTOTUNE"),
        inductor_meta={},
        triton_meta={},
        size_hints=None,
        filename=str(module),
        fn=SimpleNamespace(src=source[source.index("def ") : source.index("from triton.")], __name__="act_kernel"),
    )
    return identity.kernel_key(kernel, "list")


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("math import erf", "math import abs", False),
        ("language.math", "language.extra.libdevice", False),
        ("is too small", "is small", False),
        ('f"{BLOCK}', 'f"{x}', False),
        ('f"{BLOCK} is too small"', "f'{BLOCK} is too small'", True),
        ("import libdevice", "import libdevice, math as tl_math", True),
    ],
)
def test_the_key_of_a_users_kernel_has_aliases_and_f_strings(tmp_path: Path, old: str, new: str, same: bool) -> None:
    """The imports above the kernel are Inductor's own, and are not in the key."""
    changed = USER_MODULE.replace(old, new)

    assert changed != USER_MODULE
    assert (user_kernel_key(tmp_path, changed) == user_kernel_key(tmp_path, USER_MODULE)) is same


class ExternKernelCaller:
    """Stands in for Inductor's call of a library."""

    description = ""

    def __init__(self, dtype: str = "float16", strides: tuple[int, ...] = (4, 1), **kwargs: Any) -> None:
        self.name, self.kwargs = "mm", kwargs
        device = SimpleNamespace(type="cuda", index=0)
        self.layout = SimpleNamespace(device=device, dtype=f"torch.{dtype}", size=(8, 4), stride=strides)
        node = SimpleNamespace(
            get_size=lambda: (8, 4),
            get_stride=lambda: (4, 1),
            get_dtype=lambda: "torch.float16",
            get_name=lambda: "arg0_1",
        )
        self.input_nodes = [node]

    def hash_key(self) -> str:
        return "mm-hash"


def key_of_call(call: Any, op: str = "mm") -> dict[str, Any]:
    """Return the key of a decision with this candidate, without its inputs and precision."""
    import torch._inductor.virtualized

    values = template_key(torch, [call], op, "[('cuda', 'torch.float16', 8, 4, 4, 1, 0)]", None)
    key = {value.name: value.value for value in values}
    assert key.pop("inputs") == "cuda float16[8, 4]"
    assert key.pop("precision") == "highest"
    return key


def test_a_template_key_omits_default_arguments_and_outputs() -> None:
    assert key_of_call(ExternKernelCaller(alpha=1, beta=1, out_dtype=None, use_fast_accum=False)) == {}
    assert key_of_call(ExternKernelCaller(alpha=2, use_fast_accum=True)) == {"alpha": 2, "use_fast_accum": True}
    assert key_of_call(ExternKernelCaller("float32")) == {"output": "float32"}
    assert key_of_call(ExternKernelCaller(strides=(1, 8))) == {"output": "[8, 4] strides [1, 8]"}


def test_the_key_of_a_gpu_template_omits_default_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch
    import torch._inductor.config as config

    with config.patch({"max_autotune_gemm_backends": "triton,aten", "max_autotune_conv_backends": "ATEN"}):
        assert key_of_call(ExternKernelCaller()) == {}  # the backends for a GPU are the usual ones
        assert key_of_call(ExternKernelCaller(), "convolution") == {"settings": "max_autotune_conv_backends=ATEN"}
    with config.patch({"max_autotune_gemm_search_space": "EXHAUSTIVE", "triton.num_decompose_k_splits": 3}):
        assert key_of_call(ExternKernelCaller()) == {
            "settings": "max_autotune_gemm_search_space=EXHAUSTIVE, triton.num_decompose_k_splits=3"
        }
    torch.backends.cuda.matmul.allow_fp16_accumulation = True
    try:
        assert key_of_call(ExternKernelCaller()) == {"settings": "cuda.matmul.allow_fp16_accumulation=True"}
    finally:
        torch.backends.cuda.matmul.allow_fp16_accumulation = False
    monkeypatch.setattr(torch._C, "_get_blas_preferred_backend", lambda: SimpleNamespace(name="Cublaslt"))
    assert key_of_call(ExternKernelCaller()) == {"settings": "blas=Cublaslt"}


def test_the_key_of_a_cpu_template_omits_default_cpp_settings() -> None:
    import torch._inductor.config as config

    on_cpu, on_gpu = ExternKernelCaller(), ExternKernelCaller()
    on_cpu.layout.device.type = "cpu"

    assert key_of_call(on_cpu) == {}
    with config.patch({"cpp.simdlen": 1, "cpp.enable_unsafe_math_opt_flag": True}):
        assert key_of_call(on_gpu) == {}
        assert key_of_call(on_cpu) == {"settings": "cpp.enable_unsafe_math_opt_flag=True, cpp.simdlen=1"}


def test_the_key_of_a_generated_template_is_a_hash_of_its_code() -> None:
    first, second = template("code-1", "flex_1"), template("code-2", "flex_1")
    first.layout, first.input_nodes = ExternKernelCaller().layout, ExternKernelCaller().input_nodes
    second.layout, second.input_nodes = first.layout, first.input_nodes

    assert key_of_call(first).keys() == {"code"}
    assert key_of_call(first) == key_of_call(first) != key_of_call(second)


def test_a_benchmark_policy_is_in_the_key_unless_it_is_default() -> None:
    inputs = "[('cpu', 'torch.int8', 8, 1, 0)]"
    cudagraph = f"{inputs}:benchmark_policy=cudagraph_auto:cudagraph_unroll=10"

    usual_key = [Value("inputs", "cpu int8[8]")]
    assert identity.inputs_key(inputs) == identity.inputs_key(f"{inputs}:benchmark_policy=eager") == usual_key
    assert identity.inputs_key(cudagraph) == [
        *usual_key,
        Value("measuring", "benchmark_policy=cudagraph_auto, cudagraph_unroll=10"),
    ]


MEASURED = """
@triton_heuristics.pointwise(
    triton_meta={'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132)},
    inductor_meta={'backend_hash': 'A', 'autotune_local_cache': True, 'max_autotune': True},
)
def triton_(x):
    xnumel = 128
def call(args):
    with torch.cuda._DeviceGuard(0):
        stream0 = get_raw_stream(0)
        triton_.run(*args, stream=stream0)  # a comment
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("index=0", "index=1", True),
        ("'A'", "'B'", True),
        ("Guard(0)", "Guard(1)", True),
        ("stream0", "stream1", True),
        ("a comment", "another one", True),
        ("'autotune_local_cache': True", "'autotune_local_cache': False", True),
        ("'max_autotune': True", "'max_autotune': False", False),
        ("128", "256", False),
    ],
)
def test_the_key_of_fused_code_ignores_gpu_index_and_comments(old: str, new: str, same: bool) -> None:
    changed = MEASURED.replace(old, new)

    assert changed != MEASURED
    assert (identity.measured_module_digest(changed) == identity.measured_module_digest(MEASURED)) is same
