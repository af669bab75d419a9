"""Loaded choices of Inductor race again, on a GPU that a test makes up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_autotune.cache.model import Candidate, Device, Entry, Problem, Value
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.inductor.benchmarks import Benchmarks, KernelRace
from pytest_autotune.tuners.inductor.templates import TemplateDecision, Templates
from pytest_autotune.tuners.shared.patches import Patches
from tests.sessions import AnyChoice, a_session, verifying
from tests.test_inductor_benchmarks import Inductor, Kernel
from tests.test_race import Gpu

GPU = Device("NVIDIA H200", "sm_90", 132)


def a_race(entry: Entry) -> tuple[Session, list[Any]]:
    """Return a session that races this entry, and the list of its verdicts."""
    mode = verifying()
    return a_session((entry,), modes=(mode,))[0], mode.verdicts


def config(block: int) -> Any:
    return SimpleNamespace(kwargs={"XBLOCK": block}, num_warps=4, num_stages=1)


def params(block: int) -> tuple[Value, ...]:
    return Value("XBLOCK", block), Value("num_warps", 4), Value("num_stages", 1)


class Spilling(Kernel):
    """Inductor's autotuner of a kernel.

    :param times_us: the time of each candidate, by its block.
    :param spills: the number of registers that a candidate spills, by its block.
    """

    custom_kernel = False
    inductor_meta: Mapping[str, Any] = {}

    def __init__(self, times_us: Mapping[int, float], spills: Mapping[int, int] | None = None) -> None:
        super().__init__(list(times_us.values()))
        for launcher, block in zip(self.launchers, times_us, strict=True):
            launcher.config, launcher.n_spills = config(block), (spills or {}).get(block, 0)


def test_verify_says_if_a_choice_is_slower_than_a_candidate() -> None:
    choice = Candidate(params=params(64))
    entry = Entry(Problem("inductor.config", "k", (), GPU), (), choice)
    results = []
    for times_us, spills in (({16: 40.0, 64: 44.0, 128: 30.0}, {128: 99}), ({16: 44.0, 64: 44.2}, {})):
        session, verdicts = a_race(entry)
        autotuner = Spilling(times_us, spills)
        race = KernelRace(autotuner, choice, ("x",), {}, Benchmarks(Gpu), compiled_s=1.5)
        with session.tuning(AnyChoice(entry.problem)) as tuning:
            tuning.race(race.build)
        results += verdicts

    slower, good = results
    assert slower.raced == 2
    assert "1.10 times as long as XBLOCK=16, num_warps=4, num_stages=1, which takes 39" in str(slower)
    assert slower.seconds >= 1.5  # with the compilation of all candidates
    assert (good.not_raced, good.is_slower) == ("", False)


def template(name: str) -> Any:
    class TemplateCaller:
        layout = SimpleNamespace(device=SimpleNamespace(type="cuda", index=0))

        def hash_key(self) -> str:
            return name

    choice: Any = TemplateCaller()
    choice.name, choice.description = name, f"BLOCK={name}"
    return choice


class AlgorithmSelectorCache:
    """Inductor's class that decides among templates."""

    def lookup(self, choices: Any, op: Any, inputs: Any, benchmark: Any, hint_override: Any = None) -> Any:
        raise AssertionError("the plugin answers every lookup")


SELECT_ALGORITHM: Any = SimpleNamespace(AlgorithmSelectorCache=AlgorithmSelectorCache, torch=None)


@pytest.mark.parametrize(
    ("times_us", "verdict_start"),
    [
        (
            {"a": 50.0, "b": 44.0, "c": 90.0},
            "the choice takes 50.01 us, 1.14 times as long as Template b: BLOCK=b, which takes 44",
        ),
        ({"a": 50.0, "b": 49.5, "c": 90.0}, "no other candidate is faster"),
        ({"a": 50.0, "b": math.inf, "c": math.inf}, "not verified: no candidate except the choice can be launched"),
    ],
)
def test_verify_measures_templates_but_returns_loaded_times(
    monkeypatch: pytest.MonkeyPatch, times_us: Mapping[str, float], verdict_start: str
) -> None:
    choices = [template(name) for name in times_us]
    loaded_times_us = (10.0, 20.0, 30.0)
    loaded = [Candidate(name, time_us=time_us) for name, time_us in zip(times_us, loaded_times_us, strict=True)]
    entry = Entry(Problem("inductor.template", "mm", (), GPU), candidates=tuple(loaded))
    session, verdicts = a_race(entry)
    inductor: Any = Inductor()
    benchmarks = Benchmarks(Gpu)
    patches = Patches(session, "inductor")
    benchmarks.hook(inductor, session, patches)
    Templates(benchmarks).hook(SELECT_ALGORITHM, session, patches)
    monkeypatch.setattr("pytest_autotune.tuners.inductor.templates.template_key", lambda *args: ())
    monkeypatch.setattr("pytest_autotune.tuners.inductor.templates.device_of", lambda *args: GPU)
    monkeypatch.setattr(TemplateDecision, "explain_failed_compilation", lambda *args: "")
    counts: list[int] = []

    def benchmark(candidates: Sequence[Any]) -> dict[Any, float]:
        counts.append(len(candidates))
        times_ms = {}
        for candidate in candidates:
            if math.isinf(times_us[candidate.name]):
                times_ms[candidate] = math.inf  # as Inductor does for a candidate that fails
                continue
            times_ms[candidate] = inductor.benchmarker.benchmark(partial(times_us.__getitem__, candidate.name))
        return times_ms

    cache = AlgorithmSelectorCache()
    before_compilation = cache.lookup(choices, "mm", "inputs", None)
    times_ms = cache.lookup(choices, "mm", "inputs", benchmark)
    patches.undo()

    assert before_compilation == {}  # so that Inductor compiles all candidates
    assert times_ms == dict(zip(choices, (0.01, 0.02, 0.03), strict=True))
    [verdict] = verdicts
    assert str(verdict).startswith(verdict_start)
    if verdict.is_slower:
        assert counts == [3, 2]
        fastest = min(verdict.entry.candidates, key=lambda candidate: candidate.time_us or 0.0)
        assert fastest.id == "b"
    else:
        assert counts == [3]
