"""Lets pytest-autotune keep what the toy tuner chooses, by the public interface alone."""

import os
from contextlib import nullcontext
from functools import partial

from pytest_autotune.adapters import (
    CallHook,
    CallInstead,
    CallResult,
    Candidate,
    Contest,
    Device,
    HookError,
    HostLaunch,
    Patches,
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


class ToyContest:
    """Brings the configs of a toy problem to the race of a loaded choice."""

    def __init__(self, library, asked, question, gpu):
        self._library = library
        self._asked = asked
        self._question = question
        self._gpu = gpu

    def build(self):
        return Contest(self._asked.candidates(), self.build_runners, ToldClock, processor=self._gpu)

    def build_runners(self, candidates):
        runners = {}
        for candidate in candidates:
            name = candidate.params[0].value
            if name not in self._question.broken:
                runners[candidate] = Runner(partial(self._library.launch, self._question, name))
        return runners


class ChooseHook(CallHook):
    """Looks up the config before the toy tuner searches, and records its choice."""

    def __init__(self, session, library):
        self._session = session
        self._library = library

    def ask(self, call):
        session, question = self._session, call.arguments["question"]
        # This is the older form of session.leaves_alone(tuner, kernel), which third-party adapters may still have.
        if session.is_paused or session.ignores(question.tuner, question.kernel):
            return None
        multiprocessors = int(os.environ.get("TOY_MULTIPROCESSORS", "4"))
        device = Device(os.environ.get("TOY_DEVICE", "Toy GPU"), "toy", multiprocessors)
        key = tuple(Value(name, value) for name, value in question.key.items())
        problem = Problem(question.tuner, question.kernel, key, device)
        fingerprint = [Value("source", question.source, "digest"), Value("search", ",".join(question.times), "digest")]
        candidates = {
            name: Candidate(params=(Value("config", name),), time_us=time) for name, time in question.times.items()
        }
        asked = ToyQuestion(problem, fingerprint, Versions.parse(question.environment), candidates)
        gpu = os.environ.get("TOY_GPU", "")
        tuning = call.enter(session.tuning(asked))
        for entry in tuning.offered_entries():
            name = entry.choice.params[0].value
            if name not in question.broken:
                tuning.race(ToyContest(self._library, asked, question, gpu).build)
                return CallResult(name)
            tuning.reject(f"{name} does not compile")
        call.enter(tuning.measuring(gpu))
        call.state = tuning, candidates
        return CallInstead(self._library.search, [question])

    def note(self, call, result):
        if call.state is not None:
            tuning, candidates = call.state
            tuning.record(candidates[result], list(candidates.values()))


class Adapter:
    module = "toytuner"
    acts_without_entries = True
    #: The run that the toy tuner is hooked for, for what it does not do itself.
    session = None

    def __init__(self):
        self._patches = None

    def hook(self, module, session):
        if os.environ.get("TOY_UNKNOWN"):
            raise HookError("its tune() takes other arguments")
        Adapter.session = session
        self._patches = Patches(session, "toy")
        self._patches.replace(module, "choose", ["question"], ChooseHook(session, module))

    def unhook(self):
        Adapter.session = None
        if self._patches is not None:
            self._patches.undo()

    def isolated(self):
        return nullcontext()

    def untracked(self):
        return os.environ.get("TOY_UNSEEN", "").split()
