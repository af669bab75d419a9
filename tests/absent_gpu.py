"""Run torch.compile for an absent NVIDIA H200. A new process imports this module before it uses torch.

Inductor lowers graphs, selects templates and decides about fusions, and Triton compiles the kernels to machine code for
sm_90. This module replaces the properties of the device, the launches and the times. A time depends only on the config
that was launched. The fastest ``XBLOCK`` is 16, which is in no list of candidates. ``measurements`` has a line for each
measurement. Configs that contain the text of the environment variable ``DOES_NOT_FIT`` need too much shared memory.
"""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import torch._dynamo.testing
import torch._inductor.compile_fx
import torch._inductor.select_algorithm as select_algorithm
import torch.utils._triton
from torch._dynamo import device_interface
from torch._inductor import async_compile, config, graph, scheduler, utils
from torch._inductor.codecache import PyCodeCache
from torch._inductor.fx_passes import joint_graph, post_grad, pre_grad
from torch._inductor.runtime import benchmarking, triton_helpers, triton_heuristics
from torch._inductor.runtime.hints import DeviceProperties
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.runtime.errors import OutOfResources

FOR_COMPILER = {
    "multi_processor_count": 132,
    "cc": 90,
    "major": 9,
    "regs_per_multiprocessor": 65536,
    "max_threads_per_multi_processor": 2048,
    "max_threads_per_block": 1024,
    "warp_size": 32,
}
PROPERTIES = SimpleNamespace(
    name="NVIDIA H200",
    minor=0,
    total_memory=141 << 30,
    gcnArchName="NVIDIA H200",
    shared_memory_per_block_optin=232448,
    shared_memory_per_block=49152,
    L2_cache_size=50 << 20,
    uuid="absent",
    is_integrated=0,
    **FOR_COMPILER,
)
#: A line for each measurement.
measurements: list[str] = []
#: A line for each candidate that was compiled in this process.
compilations: list[str] = []
#: The names of the threads that compiled the candidates.
compiling_threads: list[str] = []
_launched: Any = None
_modules: list[Any] = []


class _Guard:
    def __init__(self, *args: object) -> None:
        pass

    def __enter__(self) -> _Guard:
        return self

    def __exit__(self, *args: object) -> None:
        pass


class _Launcher:
    n_regs, n_spills, shared, cache_hash, store_cubin = 32, 0, 0, "", False

    def __init__(self, result: Any) -> None:
        self.config = result.config

    def __call__(self, *args: object, **kwargs: object) -> None:
        global _launched
        _launched = self.config


class _Compiled(Exception):
    pass


def _pretend() -> None:
    create = DeviceProperties.create

    def properties(device: Any) -> Any:
        torch_device = torch.device(device)
        if torch_device.type != "cuda":
            return create(device)
        return DeviceProperties(type="cuda", index=torch_device.index or 0, **FOR_COMPILER)

    DeviceProperties.create = staticmethod(properties)  # type: ignore[method-assign]
    cuda: Any = torch.cuda
    cuda.get_device_properties = lambda *args: PROPERTIES
    cuda.get_device_capability = lambda *args: (9, 0)
    cuda.current_device = lambda: 0
    cuda.device_count = lambda: 2
    cuda._DeviceGuard = _Guard
    cuda.set_device = lambda *args: None
    interface: Any = device_interface.CudaInterface
    answers = {
        "get_device_properties": PROPERTIES,
        "is_available": True,
        "current_device": 0,
        "device_count": 2,
        "get_compute_capability": 90,
        "raise_if_triton_unavailable": None,
        "synchronize": None,
        "get_raw_stream": 0,
    }
    for name, answer in answers.items():
        setattr(interface, name, staticmethod(lambda *args, answer=answer, **kwargs: answer))
    interface.Worker.get_device_properties = staticmethod(lambda *args, **kwargs: PROPERTIES)
    interface.device = _Guard
    device_interface.DeviceGuard = _Guard  # type: ignore[assignment,misc]
    for module in (torch.utils._triton, utils, scheduler):
        module.has_triton = lambda *args, **kwargs: True  # type: ignore[attr-defined]
    torch.utils._triton.triton_hash_with_backend = lambda *args, **kwargs: "absent"
    utils.is_big_gpu = lambda *args, **kwargs: True
    triton_helpers.set_driver_to_gpu = lambda: None
    torch._C._cuda_getCurrentRawStream = lambda device: 0
    for passes in (joint_graph, post_grad, pre_grad):
        if hasattr(passes, "lazy_init"):
            passes.lazy_init = lambda *args, **kwargs: None
    torch._dynamo.testing.rand_strided = lambda size, stride, **kwargs: torch.empty_strided(size, stride)

    for result in (triton_heuristics.StaticTritonCompileResult, triton_heuristics.TritonCompileResult):
        result.make_launcher = lambda self: _Launcher(self)
    autotuner: Any = triton_heuristics.CachingAutotuner
    autotuner.clone_args = lambda self, *args, **kwargs: (args, kwargs)
    autotuner.maybe_clone_args = lambda self, exclude, *args, **kwargs: (args, kwargs)
    autotuner.copy_args_to_cpu_if_needed = lambda self, *args, **kwargs: {}
    autotuner.reset_to_zero_args = lambda self, *args, **kwargs: None
    compile_one = autotuner._precompile_config

    def compile_config(self: Any, cfg: Any) -> Any:
        compilations.append(f"{self.fn.__name__} {cfg}")
        compiling_threads.append(threading.current_thread().name)
        if (refused := os.environ.get("DOES_NOT_FIT")) and refused in str(cfg):
            raise OutOfResources(2, 1, "shared memory")
        return compile_one(self, cfg)

    autotuner._precompile_config = compile_config
    for name in ("benchmark", "benchmark_gpu"):
        for cls in type(benchmarking.benchmarker).__mro__:
            if name in vars(cls):
                setattr(cls, name, _measure)
    selector: Any = select_algorithm.AlgorithmSelectorCache
    selector.autotune = _measure_templates
    for choice in (select_algorithm.TritonTemplateCaller, select_algorithm.ExternKernelCaller):
        choice.precompile = lambda self: None
    module_of = graph.GraphLowering.compile_to_module

    def compile_to_module(self: Any) -> Any:
        _modules.append(module_of(self))
        raise _Compiled

    graph.GraphLowering.compile_to_module = compile_to_module


def compile_nothing() -> None:
    """Replace Triton's compiler by a function that does nothing, for tests of Inductor's decisions."""

    def compile_config(self: Any, cfg: Any) -> Any:
        result: Any = object.__new__(triton_heuristics.TritonCompileResult)
        result.config, result.kernel = cfg, SimpleNamespace(hash="00")
        return result

    autotuner: Any = triton_heuristics.CachingAutotuner
    autotuner._precompile_config = compile_config


def _time_ms(text: str) -> float:
    return 0.01 + int(hashlib.sha256(text.encode()).hexdigest()[:4], 16) / 1e6


def _measure(self: Any, fn: Any, *args: object, **kwargs: object) -> float:
    global _launched
    _launched = None
    fn()
    measurements.append(f"launch {_launched}")
    if _launched is None:
        return 0.001
    far = abs(math.log2(_launched.kwargs.get("XBLOCK", 16)) - 4) + abs(_launched.num_warps - 8) / 10
    return 0.01 + 0.001 * far


def _measure_templates(
    self: Any, name: str, inputs: Any, layout: Any, generators: Any, choices: Any, *args: Any, **kwargs: Any
) -> dict[Any, float]:
    measurements.extend(f"template {choice.hash_key()}" for choice in choices)
    return {choice: _time_ms(choice.hash_key()) for choice in choices}


def compiled(function: Any, *shapes: tuple[int, ...], device: str = "cuda:0", dtype: Any = None, **kwargs: Any) -> Any:
    """Return the module that Inductor generates for a function of tensors with these shapes."""
    _modules.clear()
    torch._dynamo.reset()
    with FakeTensorMode():
        tensors = [torch.empty(shape, device=device, dtype=dtype or torch.float32) for shape in shapes]
        try:
            torch.compile(function, **kwargs)(*tensors)
        except Exception:
            if not _modules:
                raise
    return _modules[-1]


def launch(module: Any, part_of_name: str = "") -> dict[str, str]:
    """Call the kernels of a module whose names contain the text once, and return the config of each by its name."""
    chosen = {}
    for name, kernel in vars(module).items():
        if part_of_name in name and isinstance(kernel, triton_heuristics.CachingAutotuner):
            signature = kernel.triton_meta["signature"].values()
            kernel.run(*[1 for kind in signature if kind != "constexpr"], stream=0)
            chosen[name] = str(kernel.launchers[0].config)
    return chosen


def code(module: Any) -> str:
    """Return the generated code of a module, without paths and comments."""
    with open(module.__file__) as file:
        text = file.read()
    return re.sub(r"#.*", "", re.sub(r"/\S+\.py", "", text))


class _Worker:
    """A stand-in for a compile worker. It works in this process, and pickles its result as a worker does."""

    def submit(self, job: Any, *args: Any) -> Any:
        result = pickle.dumps(job(*args))
        # A real worker loads the modules into another process.
        PyCodeCache.cache_clear()
        return SimpleNamespace(result=lambda: pickle.loads(result))


@contextmanager
def compile_worker() -> Iterator[None]:
    """Let Inductor compile kernels in a pool of stand-ins for compile workers."""
    pool = async_compile.AsyncCompile.process_pool
    uses = async_compile.AsyncCompile.use_process_pool
    async_compile.AsyncCompile.process_pool = staticmethod(_Worker)  # type: ignore[assignment]
    async_compile.AsyncCompile.use_process_pool = classmethod(lambda cls: True)  # type: ignore[assignment]
    try:
        with config.patch(compile_threads=2):
            yield
    finally:
        async_compile.AsyncCompile.process_pool = staticmethod(pool)  # type: ignore[assignment]
        async_compile.AsyncCompile.use_process_pool = uses  # type: ignore[method-assign]


_pretend()
