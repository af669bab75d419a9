"""The race of a loaded choice of Triton against the other candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_autotune.cache.model import Candidate, Value
from pytest_autotune.devices import stream_is_capturing
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.run.verify import Verdict
from pytest_autotune.tuners.measuring.clocks import Runner
from pytest_autotune.tuners.measuring.verifying import CAPTURED, Contest, verify
from pytest_autotune.tuners.triton import interpreter
from pytest_autotune.tuners.triton.call import Call
from pytest_autotune.tuners.triton.compiling import compile_and_load, compile_candidates, launched_code
from pytest_autotune.tuners.triton.internals import benchmark, kernel_layers
from pytest_autotune.tuners.triton.launches import clock_for, runner


def verify_choice(call: Call, offered: Mapping[tuple[Value, ...], Any], tuning: Tuning, run: Session) -> None:
    """Race the loaded choice where it is its turn.

    :param offered: the candidates by their params.
    """
    if not tuning.to_verify:
        return
    if interpreter.interprets(call.autotuner):
        tuning.verified(Verdict("it was interpreted, and times mean nothing"))
        return
    if not kernel_layers.is_of_triton(call.autotuner):
        tuning.verified(Verdict("it is a Python function, whose launches are its own"))
        return
    if stream_is_capturing():
        tuning.verified(CAPTURED)
        return
    make_clock = clock_for(call.autotuner)
    if make_clock is None:
        tuning.verified(Verdict("its kernel brings a benchmark of its own"))
        return

    def ready(candidates: Sequence[Candidate]) -> dict[Candidate, Runner]:
        configs = [offered[candidate.params] for candidate in candidates]
        compile_candidates(call, configs, run)
        runners = {}
        for candidate, config in zip(candidates, configs, strict=True):
            try:
                code = launched_code(call, config, compile_and_load(call, config))
            except Exception:  # as in a search, it fails alone
                continue
            runners[candidate] = runner(call.autotuner, call.args, call.kwargs, config, code)
        return runners

    candidates = [Candidate(params=params) for params in offered]
    verify(tuning, Contest(candidates, ready, make_clock, benchmark.expected_failures()))
