"""Compiles the choices of a loaded cache ahead of the tests, in children, into Triton's own cache on disk.

The children are forked when collection is done: they have imported what the tests have, and nothing else. Each entry
says what its choice was compiled for; a child makes arguments of that and has Triton compile, for the tests' own type
of GPU, behind a driver that has none. A test that needs what is being compiled waits for it. What a child cannot make
anything of, it leaves to the test.
"""

from __future__ import annotations

import gc
import glob
import json
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

from pytest_autotune import devices
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Device
from pytest_autotune.devices import cuda_driver
from pytest_autotune.run.compiled_ahead import CompiledAhead
from pytest_autotune.run.door import TuningRun
from pytest_autotune.run.together import children
from pytest_autotune.run.together.locks import HeldLock
from pytest_autotune.run.together.waiting import Waits
from pytest_autotune.tuners.protocol import Suite
from pytest_autotune.tuners.shared.reach import reached
from pytest_autotune.tuners.shared.source.functions import layers, python_function, qualified_name
from pytest_autotune.tuners.triton import interpreter
from pytest_autotune.tuners.triton.compilations import Compilations, compile_kernel, compile_only, foreign_target
from pytest_autotune.tuners.triton.dummies import dummy_of
from pytest_autotune.tuners.triton.identity import NAME, holds
from pytest_autotune.tuners.triton.key import Heuristics
from pytest_autotune.tuners.triton.params import distinct_params
from pytest_autotune.tuners.triton.specialisation import Held, NoText, innermost, named, parsed

#: So many texts of one entry are compiled for.
MOST_OF_ENTRY = 64
#: Why nothing was done, in words.
AFTER_CUDA = "CUDA was initialised before the first test; --autotune-compile-ahead=always forks all the same"
_ASK_S = 30.0
# In a process of its own: CUDA that was initialised in the parent is of no use in a forked child.
_ASK_DRIVER = """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
device, name, found = ctypes.c_int(), ctypes.create_string_buffer(256), []
assert not cuda.cuInit(0) and not cuda.cuDeviceGet(ctypes.byref(device), 0)
assert not cuda.cuDeviceGetName(name, 256, device)
for attribute in (75, 76, 16):
    number = ctypes.c_int()
    assert not cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
    found.append(number.value)
print(json.dumps([name.value.decode(errors="replace"), *found]))
"""


class CompileAhead:
    """What one process has compiled ahead of its tests.

    :param compilations: of this process.
    :param autotuner_class: Triton's.
    """

    def __init__(self, run: TuningRun, compilations: Compilations, autotuner_class: Any) -> None:
        self._run = run
        self._compilations = compilations
        self._class = autotuner_class
        self._children: children.Children | None = None
        self._told: Path | None = None
        self._asked: set[str] = set()
        self._waited_s = 0.0
        self._notes: Sequence[str] = ()

    def start(self, suite: Suite) -> None:
        """Fork children that compile; the tests go on at once."""
        index = self._run.index
        if index is None or NAME not in index.tuners() or suite.children < 1 or not sys.platform.startswith("linux"):
            return
        if _cuda_is_initialised() and not suite.after_cuda:
            self._run.ahead = CompiledAhead(skipped=AFTER_CUDA)
            return
        told = suite.folder / f"{uuid.uuid4().hex}.ahead"
        descriptor = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            tell = partial(_tell, descriptor)
            waits = Waits(suite.wait_s)
            plan = _Plan(self._run, index, self._class, suite, self._compilations, _known_device(), tell)
            self._children = children.start(plan.jobs, suite.children, [descriptor])
        except OSError as error:
            self._run.note(f"triton: nothing was compiled ahead: {error.strerror or error}")
            return
        finally:
            os.close(descriptor)
        self._told, self._notes = told, waits.notes
        self._compilations.turns = partial(self._turn, waits, suite.folder)

    @contextmanager
    def _turn(self, waits: Waits, folder: Path, name: str) -> Iterator[None]:
        """Compile in this process what no other one compiles now; what one does is there afterwards."""
        self._asked.add(name)
        started = time.monotonic()
        lock = waits.acquire(_lock_of(folder, name))
        self._waited_s += time.monotonic() - started
        try:
            yield
        finally:
            if lock is not None:
                lock.release()

    def stop(self) -> None:
        """End the children, and say what they have done."""
        if self._children is None:
            return
        self._compilations.turns = None
        self._children.stop()
        self._children = None
        for note in self._notes:
            self._run.note(note)
        compiled: dict[str, float] = {}
        for kind, words in _read(self._told):
            if kind == "compiled":
                name, seconds = words.split()
                compiled[name] = float(seconds)
            elif kind == "note":
                self._run.note(f"triton: nothing was compiled ahead: {words}")
        waited = round(self._waited_s, 3) if compiled else 0.0
        self._run.ahead = CompiledAhead(tuple(sorted(compiled.items())), tuple(sorted(self._asked)), waited)


def _lock_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.compiling"


def _tell(descriptor: int, kind: str, words: str) -> None:
    with suppress(OSError):
        os.write(descriptor, f"{kind} {' '.join(words.split())[:300]}\n".encode(errors="replace"))


def _read(told: Path | None) -> Iterator[tuple[str, str]]:
    with suppress(OSError, ValueError):
        for line in told.read_text(encoding="utf-8").splitlines() if told else ():
            kind, _, words = line.partition(" ")
            yield kind, words


def _cuda_is_initialised() -> bool:
    torch: Any = sys.modules.get("torch")
    return (torch is not None and bool(torch.cuda.is_initialized())) or cuda_driver.context_gpu() is not None


def _known_device() -> Device | None:
    """What the tests run on, where that can be seen without initialising anything."""
    if _cuda_is_initialised():
        return devices.current_gpu()
    arch = foreign_target()
    if not arch:
        return None
    return devices.current_gpu() or Device("cuda" if arch.startswith("sm_") else "hip", arch)


def _shown_device(loaded: Collection[Device], shown: str = "/proc/driver/nvidia/gpus/*/information") -> Device | None:
    """The device that all GPUs of this machine are, if there are entries for it; None where it cannot be seen.

    To ask the driver takes a second or more, in which children would have nothing to do.

    :param shown: where NVIDIA's driver says what there is.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip().startswith(("-", "MIG", "NoDev")):
        return None
    models = set()
    for path in glob.glob(shown):
        with suppress(OSError):
            models |= set(re.findall(r"^Model:\s*(.+?)\s*$", Path(path).read_text(errors="replace"), re.MULTILINE))
    found = [device for device in loaded if models == {device.name}]
    return found[0] if len(found) == 1 and os.environ.get("CUDA_VISIBLE_DEVICES") != "" else None


def _asked_device() -> Device | None:
    """The first GPU that NVIDIA's driver shows to processes like this one."""
    command = [sys.executable, "-I", "-S", "-c", _ASK_DRIVER]
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        answer = subprocess.run(command, capture_output=True, timeout=_ASK_S, check=True).stdout
        name, major, minor, multiprocessors = json.loads(answer)
        return Device(name, f"sm_{major}{minor}", multiprocessors)
    return None


class _Taken(Exception):
    """Another process compiles this now."""


class _Plan:
    """What the children do; only they call anything of it."""

    def __init__(
        self,
        run: TuningRun,
        index: EntryIndex,
        autotuner_class: Any,
        suite: Suite,
        compilations: Compilations,
        device: Device | None,
        tell: Callable[[str, str], None],
    ) -> None:
        self._run = run
        self._index = index
        self._class = autotuner_class
        self._suite = suite
        self._compilations = compilations
        self._device = device
        self._tell = tell
        self._name = ""
        self._started = 0.0

    def jobs(self) -> Sequence[Callable[[], object]]:
        """What is to be compiled, what the tests need first in front."""
        try:
            device = self._device or _shown_device(self._index.devices(NAME)) or _asked_device()
            if device is None:
                return []
            jobs = list(self._jobs(device))
            if jobs:
                compile_only(device.arch, self._was_compiled)
                self._compilations.turns = self._turn
            return jobs
        except Exception as error:
            self._tell("note", f"{type(error).__name__}: {error}")
            return []

    @contextmanager
    def _turn(self, name: str) -> Iterator[None]:
        try:
            lock = HeldLock(_lock_of(self._suite.folder, name))
        except OSError:
            raise _Taken(name) from None
        try:
            self._name, self._started = name, time.perf_counter()
            yield
        finally:
            lock.release()

    def _compile(self, autotuner: Any, config: Any, text: str) -> None:
        try:
            _compile(autotuner, config, text)
        except _Taken:
            pass
        except Exception as error:  # the test that launches it, if any does, gets the error
            self._tell("failed", f"{type(error).__name__}: {error}")

    def _was_compiled(self, *, cache_hit: bool = True, **_: object) -> None:
        if not cache_hit:
            self._tell("compiled", f"{self._name} {time.perf_counter() - self._started:.3f}")

    def _jobs(self, device: Device) -> Iterator[Callable[[], object]]:
        found = _Kernels(self._class)
        seen: set[tuple[object, ...]] = set()
        for autotuner in found.in_order(self._suite):
            with suppress(Exception):  # of this kernel nothing is compiled ahead
                for config, text in self._wanted(autotuner, found, device):
                    job = id(autotuner), id(config), text
                    if job not in seen:
                        seen.add(job)
                        yield partial(self._compile, autotuner, config, text)

    def _wanted(self, autotuner: Any, found: _Kernels, device: Device) -> Iterator[tuple[Any, str]]:
        """The choices of one autotuner that hold here, with what to compile them for."""
        function = python_function(autotuner)
        kernel = qualified_name(function) if function else ""
        if function is None or self._run.ignores(NAME, kernel) or interpreter.interprets(autotuner):
            return
        if not _is_current(autotuner, function):
            return
        names = {device.name, self._run.policy.aliases.get(device.name, device.name)}
        entries = [
            entry
            for entry in self._index.of_kernel(NAME, kernel)
            if entry.compiled and entry.problem.device.name in names and entry.problem.device.arch == device.arch
        ]
        if not entries:
            return
        heuristics = found.heuristics(autotuner)
        offered = dict(zip(distinct_params(autotuner.configs), autotuner.configs, strict=True))
        distinct = {entry.fingerprint: entry for entry in entries}
        trusted = {mark for mark, entry in distinct.items() if holds(entry, autotuner, function, heuristics)}
        for entry in entries:
            config = offered.get(entry.choice.params) if entry.choice is not None else None
            if config is not None and entry.fingerprint in trusted:
                for text in entry.compiled[:MOST_OF_ENTRY]:
                    yield config, text


def _compile(autotuner: Any, config: Any, text: str) -> None:
    """Compile one specialisation of a choice.

    :raises Exception: where the text is none, or does not fit the kernel; or it does not compile.
    """
    function = innermost(autotuner)
    told = parsed(text)
    names = list(function.arg_names)
    if len(names) != len(told.parts):
        raise NoText("another number of parameters")
    given: Mapping[str, Any] = {
        name: dummy_of(part) for name, part in zip(names, told.parts, strict=True) if not isinstance(part, Held)
    }
    if config.kwargs.keys() & given.keys():
        raise NoText("the choice holds a parameter")
    compile_kernel(function, {**given, **config.all_kwargs(), **told.options})


def _is_current(autotuner: Any, function: FunctionType) -> bool:
    """Whether a kernel is what stands under its name in its module now; those of factories stand nowhere."""
    name = function.__qualname__
    if "<locals>" in name:
        return function.__module__ in sys.modules
    try:
        return any(layer is autotuner for layer in layers(named(f"{function.__module__}:{name}")))
    except NoText:
        return False


class _Kernels:
    """The autotuners that there are in this process, those of factories too."""

    def __init__(self, autotuner_class: Any) -> None:
        self._class = autotuner_class
        objects = gc.get_objects()
        # isinstance would ask proxies for their class, which may run code of theirs.
        self._autotuners = [one for one in objects if issubclass(type(one), autotuner_class)]
        self._heuristics = [one for one in objects if type(one).__name__ == "Heuristics" and hasattr(one, "fn")]

    def in_order(self, suite: Suite) -> list[Any]:
        """Those that the tests reach by name, in the order of the tests; then the others, if all tests are to run."""
        known = {id(one): one for one in self._autotuners}
        found = reached(suite.tests, lambda value: id(value) in known)
        if suite.is_part:
            return found
        met = set(map(id, found))
        return found + [one for one in self._autotuners if id(one) not in met]

    def heuristics(self, autotuner: Any) -> Heuristics:
        """The functions of ``triton.heuristics`` under and over an autotuner, as a call of it would find them."""
        under = list(self._chain(autotuner.fn))
        above: list[Any] = []
        inner: Any = autotuner
        while (outer := next((one for one in self._heuristics if one.fn is inner), None)) is not None:
            above.append(outer)
            inner = outer
        return [pair for one in (*under, *above) for pair in one.values.items()]

    def _chain(self, layer: Any) -> Iterable[Any]:
        while layer is not None:
            if any(layer is one for one in self._heuristics):
                yield layer
            layer = vars(layer).get("fn") if hasattr(layer, "__dict__") else None
