"""A toy tuner: it is told the times, and chooses the fastest of some named candidates.

It knows nothing of pytest-autotune. A line for each search goes to the file that ``TOY_LOG`` names.
"""

import os
from dataclasses import dataclass

TIMES = {"a": 10.0, "b": 20.0}


@dataclass(frozen=True)
class Question:
    """One problem: the candidates' times in microseconds, what the kernel is made of, and what tells it from others."""

    kernel: str
    times: dict
    source: str
    key: dict
    tuner: str
    environment: str
    during: object
    broken: tuple

    @property
    def best(self):
        return min((name for name in self.times if name not in self.broken), key=self.times.get)


def tune(kernel, times=TIMES, source="one", tuner="toy", environment="", during=None, broken=(), **key):
    """The name of the fastest candidate; ``during`` is called in each search, ``broken`` ones do not compile."""
    environment = environment or os.environ.get("TOY_ENVIRONMENT", "toy 1.0")
    return choose(Question(kernel, times, source, key, tuner, environment, during, broken))


def choose(question):
    return question.best


def search(question):
    with open(os.environ["TOY_LOG"], "a") as log:
        log.write(f"{question.kernel} {sorted(question.key.items())}\n")
    if question.during is not None:
        question.during()
    return question.best


def launch(question, name):
    """One launch of a candidate takes so many microseconds; ``TOY_TIMES`` has other times than then."""
    if question.during is not None:
        question.during()
    now = dict(pair.split("=") for pair in os.environ.get("TOY_TIMES", "").split())
    with open(os.environ["TOY_LOG"], "a") as log:
        log.write("launch\n")
    return float(now.get(name, question.times[name]))
