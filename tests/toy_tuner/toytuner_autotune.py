"""Lets pytest-autotune keep what the toy tuner chooses, by the public interface alone."""

import os
from contextlib import nullcontext
from functools import partial

from pytest_autotune.adapters import (
    Candidate,
    Contest,
    Device,
    HookError,
    HostLaunch,
    Problem,
    Question,
    Runner,
    Value,
    Versions,
)


class ToldClock:
    """A launch takes as long as it says."""

    can_keep_busy = True

    def synchronise(self):
        pass

    def use_device(self):
        return lambda: None

    def launch(self, runner, busy_us):
        time_us = runner.run()
        return HostLaunch(0.0, time_us)


class ToyQuestion(Question):
    """Asks for the config of a toy problem."""

    def __init__(self, problem, fingerprint, versions, candidates):
        super().__init__(problem, fingerprint, versions=versions)
        self._candidates = list(candidates.values())

    def offers(self, entry):
        return any(entry.choice.is_same_configuration(candidate) for candidate in self._candidates)

    def candidates(self):
        return [Candidate(params=candidate.params) for candidate in self._candidates]


class Adapter:
    module = "toytuner"
    acts_without_entries = True
    #: The run that the toy tuner is hooked for, for what it does not do itself.
    session = None

    def hook(self, module, session):
        if os.environ.get("TOY_UNKNOWN"):
            raise HookError("its tune() takes other arguments")
        self._library, self._original = module, module.choose
        Adapter.session = session

        def choose(question):
            return self._choose(session, question)

        module.choose = choose

    def unhook(self):
        Adapter.session = None
        if hasattr(self, "_library"):
            self._library.choose = self._original

    def isolated(self):
        return nullcontext()

    def untracked(self):
        return os.environ.get("TOY_UNSEEN", "").split()

    def _choose(self, session, question):
        if session.is_paused or session.ignores(question.tuner, question.kernel):
            return self._original(question)
        multiprocessors = int(os.environ.get("TOY_MULTIPROCESSORS", "4"))
        device = Device(os.environ.get("TOY_DEVICE", "Toy GPU"), "toy", multiprocessors)
        key = tuple(Value(name, value) for name, value in question.key.items())
        problem = Problem(question.tuner, question.kernel, key, device)
        fingerprint = [Value("source", question.source, "digest"), Value("search", ",".join(question.times), "digest")]
        candidates = {
            name: Candidate(params=(Value("config", name),), time_us=time) for name, time in question.times.items()
        }

        def ready(some):
            ready = {one: one.params[0].value for one in some if one.params[0].value not in question.broken}
            return {one: Runner(partial(self._library.launch, question, name)) for one, name in ready.items()}

        versions = Versions.parse(question.environment)
        asked = ToyQuestion(problem, fingerprint, versions, candidates)
        gpu = os.environ.get("TOY_GPU", "")
        with session.tuning(asked) as tuning:
            while tuning.entry is not None:
                name = tuning.entry.choice.params[0].value
                if name not in question.broken:
                    tuning.race(lambda: Contest(asked.candidates(), ready, ToldClock, processor=gpu))
                    return name
                tuning.reject(f"{name} does not compile")
            with tuning.measuring(gpu):
                best = self._library.search(question)
            tuning.record(candidates[best], list(candidates.values()))
            return best
