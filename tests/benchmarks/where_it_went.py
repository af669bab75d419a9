"""Where the time of a run went that loads, from what ahead_clock.py wrote, in lines of text."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: What is around every test.
_AROUND = ("_pytest/runner", "_pytest/main", "_pytest/python", "pytest/", "pluggy/", "config/__init__", "/<frozen")


@dataclass(frozen=True)
class Where:
    """What the processes of one run have written.

    :param tests: one for each process that ran tests.
    :param children: what children compiled ahead, in order of its end.
    :param plans: how long the parts of their plans took.
    :param started: when the run was begun, by the clock of both.
    """

    tests: Sequence[Mapping[str, Any]]
    children: Sequence[Mapping[str, Any]]
    plans: Sequence[Mapping[str, Any]]
    started: float

    @classmethod
    def read(cls, folder: Path, started: float) -> Where:
        told = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
        tests = [one for one in told if "last test ended" in one["marks"]]
        return cls(tests, _told(folder / "children"), _told(folder / "plans"), started)

    def lines(self) -> Iterator[str]:
        for test in self.tests:
            yield from self._of(test)
        if self.plans:
            parts = (f"{one['of']} {_took(one):.2f} s from {self._at(one['begun'])}" for one in self.plans)
            yield f"plans: {'; '.join(parts)}"
        if self.children:
            processes = {one["process"] for one in self.children}
            begun, ended = (pick(one[at] for one in self.children) for pick, at in ((min, "begun"), (max, "ended")))
            busy = sum(one["ended"] - one["begun"] for one in self.children)
            yield (
                f"children: {len(self.children)} kernels by {len(processes)}, from {self._at(begun)} "
                f"to {self._at(ended)} s, {busy:.1f} s in all; longest "
                + ", ".join(f"{one['of']} {_took(one):.1f} s" for one in sorted(self.children, key=_took)[:-4:-1])
            )

    def _at(self, moment: float) -> str:
        return f"{moment - self.started:.1f}"

    def _of(self, test: Mapping[str, Any]) -> Iterator[str]:
        marks = test["marks"]
        yield f"process {test['process']}: " + ", ".join(f"{name} {self._at(of['s'])}" for name, of in marks.items())
        begun, ended = marks.get("prepared", marks["first test begun"]), marks["last test ended"]
        used = {name: ended[name] - begun[name] for name in begun}
        yield (
            f"  tests: {used['s']:.1f} s by the clock, {used['user']:.1f} user, {used['system']:.1f} system, "
            f"{used['faults']:.0f} page faults, preempted {used['preempted']:.0f} times"
        )
        itself = [one for one in test["compiled"] if one["worked"]]
        found = [one for one in test["compiled"] if not one["worked"]]
        waited = [one for one in test["compiled"] if one["begun"] - one["asked"] > 0.01]
        yield (
            f"  compiled itself {_sum(itself)}; found {_sum(found)}; "
            f"waited for {len(waited)}: {sum(one['begun'] - one['asked'] for one in waited):.1f} s; "
            f"loaded {len(test['loads'])}: {sum(test['loads']):.1f} s, longest "
            f"{', '.join(f'{one:.2f}' for one in sorted(test['loads'])[:-6:-1])}; "
            f"built {len(test['built'])} in C: {sum(test['built']):.1f} s; "
            f"forked {len(test['forks'])}: {sum(test['forks']):.2f} s; read Triton's own files: {test['reading']:.1f} s"
        )
        by_child = {one["name"]: one for one in self.children}
        for one in itself if self.children else ():
            child = by_child.get(one["name"])
            why = "no child" if child is None else f"a child began it at {self._at(child['begun'])}"
            yield f"  itself: {one['of']} asked at {self._at(one['asked'])}, {_took(one):.1f} s, {why}"
        for one in waited:
            child = by_child.get(one["name"])
            since = "" if child is None else f", which a child began at {self._at(child['begun'])}"
            yield f"  waited {one['begun'] - one['asked']:.1f} s at {self._at(one['asked'])} for {one['of']}{since}"


def longer(one: Where, other: Where) -> Iterator[str]:
    """In which functions the main threads of a run spent more time than those of another one, in seconds."""
    for kind, title in (("inside", "in, with what it called"), ("at", "at the line")):
        seconds: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for number, where in enumerate((one, other)):
            for test in where.tests:
                for place, us in test[kind].items():
                    if not place.startswith(_AROUND):
                        seconds[place][number] += us / 1e6
        yield f"main thread, longer {title}:"
        most = sorted(seconds.items(), key=lambda item: item[1][1] - item[1][0])[:25]
        for place, (here, there) in most:
            if here - there > 0.05:
                yield f"  {here - there:+.2f} s ({here:.2f}, {there:.2f}) {place}"


def _told(path: Path) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _took(one: Mapping[str, Any]) -> float:
    return float(one["ended"] - one["begun"])


def _sum(kernels: Sequence[Mapping[str, Any]]) -> str:
    return f"{len(kernels)} in {sum(map(_took, kernels)):.1f} s"
