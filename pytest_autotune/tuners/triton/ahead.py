"""Compiles the choices of a loaded cache beside the tests, into Triton's own cache on disk.

Each entry says what its choice was compiled for. A test that launches what is being compiled waits for it, and finds it
on disk.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any

from pytest_autotune import devices
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.merge import MAX_SPECIALIZATIONS
from pytest_autotune.cache.model import Device, before_pruning
from pytest_autotune.run.mode import Job, Suite
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.shared.functions import python_function, qualified_name
from pytest_autotune.tuners.shared.reach import reached
from pytest_autotune.tuners.triton.compilations import CompiledElsewhere, CompileWatcher, leave_to_others
from pytest_autotune.tuners.triton.identity import NAME, distinct_params, fingerprint_of, heuristics_of
from pytest_autotune.tuners.triton.internals import apart, autotuners, environment
from pytest_autotune.tuners.triton.internals.autotuners import HeuristicsOver
from pytest_autotune.tuners.triton.internals.compile_time import CompileTime
from pytest_autotune.tuners.triton.specialization_text import CONSTANT, NoText, parsed


def jobs(
    session: Session, autotuner_class: Any, heuristics: HeuristicsOver, compilations: CompileWatcher, suite: Suite
) -> Iterator[Job]:
    """What of this process can be compiled beside its tests; what these need first in front.

    :param autotuner_class: Triton's.
    :param heuristics: those over autotuners.
    :param compilations: has tests wait for what is being compiled.
    :raises HookError: where this Triton is not known to compile so.
    """
    index = session.index
    if index is None or not any(entry.compiled for entry in index if entry.problem.tuner == NAME):
        return
    device = _known_device(index)
    # What AMD's backend assumes of a buffer's size is in no text.
    if device is None or not device.arch.startswith("sm_") or not environment.reads_what_others_compile():
        return
    apart.check_version()
    compilations.watch()
    cache_folder = environment.cache_folder()
    for autotuner in _ordered(autotuner_class, suite):
        try:
            found = _choices(session, autotuner, heuristics.over(autotuner), index, device)
            # By its number: whoever asks Triton's functions for a hash has them hash their source.
            choices = {(id(one[0]), id(one[1]), one[2]): one for one in found}
        except Exception as error:  # of this kernel nothing is compiled ahead
            yield partial(_fail, error)
            continue
        for kernel, config, text in choices.values():
            yield partial(_do, cache_folder, kernel, config, text, device.arch)


def _ordered(autotuner_class: Any, suite: Suite) -> list[Any]:
    live = {id(one): one for one in autotuners.live_objects(autotuner_class)}
    ordered = [one for one in reached(suite.tests) if id(one) in live]
    if not suite.is_part:
        met = set(map(id, ordered))
        ordered += [one for one in live.values() if id(one) not in met]
    return ordered


def _choices(
    session: Session, autotuner: Any, over: Iterable[Any], index: EntryIndex, device: Device
) -> Iterator[tuple[Any, Any, str]]:
    """The choices of one autotuner that hold here, with what to compile them for.

    :param over: the ``triton.heuristics`` over it.
    """
    function = python_function(autotuner)
    if function is None or autotuners.interprets(autotuner):
        return
    if function.__globals__ is not vars(sys.modules.get(function.__module__, sys)):  # its module was loaded anew
        return
    name = qualified_name(function)
    names = {device.name, session.policy.find_alias(device) or device.name}
    entries = [
        entry
        for entry in index.list_kernel_entries(NAME, name)
        if entry.compiled and entry.problem.device.name in names and entry.problem.device.arch == device.arch
    ]
    kernel = autotuners.jit_function(autotuner)
    if not entries or session.ignores(NAME, name) or CompileTime.of(kernel).needs_time:
        return
    heuristics = heuristics_of(autotuner, over)
    offered = dict(zip(distinct_params(autotuner.configs), autotuner.configs, strict=True))
    now = tuple(sorted(fingerprint_of(autotuner, heuristics), key=attrgetter("name")))
    for entry in entries:
        config = offered.get(entry.choice.params) if entry.choice is not None else None
        if config is not None and before_pruning(entry.fingerprint) == now:
            for text in entry.compiled[:MAX_SPECIALIZATIONS]:
                yield kernel, config, text


def _fail(error: Exception) -> bool:
    raise error


def _do(cache_folder: str, kernel: Any, config: Any, text: str, arch: str) -> bool:
    """Compile one choice, in a thread of a pool.

    :param cache_folder: Triton's, when the tests began.
    :returns: whether that was to be done here.
    """
    leave_to_others()
    try:
        # A test may have given Triton another folder, or listen to what is compiled.
        is_usual = environment.cache_folder() == cache_folder and environment.reads_what_others_compile()
        return is_usual and _compile(kernel, config, text, arch)
    except (CompiledElsewhere, apart.ChangedMeanwhile):
        return False


def _known_device(index: EntryIndex) -> Device | None:
    """What the tests run on, where that can be seen without initialising anything."""
    if devices.cuda_is_initialised():
        return devices.current_gpu()
    return devices.only_type(index.list_devices(NAME))


def _compile(kernel: Any, config: Any, text: str, arch: str) -> bool:
    """Compile one specialization of a kernel; returns whether that was to be done.

    :param kernel: Triton's ``JITFunction``.
    :param config: the choice.
    :raises Exception: where the text is none, or does not fit the kernel; or it does not compile.
    """
    parameters, options = parsed(text)
    if len(kernel.params) != len(parameters):
        raise NoText("another number of parameters")
    signature: dict[str, Any] = {}
    constants: dict[tuple[int], Any] = {}
    assumed: dict[tuple[int], str] = {}
    for number, (own, noted) in enumerate(zip(kernel.params, parameters, strict=True)):
        signature[own.name] = noted.kind
        if noted.kind == CONSTANT:
            constants[number,] = config.kwargs[own.name] if noted.is_held else noted.constant
            words = apart.assumptions_of_constant(constants[number,])
        else:
            words = apart.assumptions(noted.kind, own, divisible=noted.divisible)
        if words is not None:
            assumed[number,] = words
    return apart.compile_apart(kernel, signature, constants, assumed, {**config.all_kwargs(), **options}, arch)
