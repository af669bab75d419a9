"""What passes between the controller and its workers under xdist: primitives only."""

from __future__ import annotations

import socket
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pytest_autotune.session import INPUT_KEY


@dataclass(frozen=True)
class Task:
    """What the controller sends a worker when it starts.

    :param groups: the loaded entries in binary form, or None when nothing is loaded.
    :param known_kernels: kernels, as ``tuner:kernel``, of which the worker reports whether
        it imported their module.
    :param run_folder: where the processes of this run write down what they do; empty where there is no place.
    :param host: the controller's host; its paths mean nothing on another one.
    :param run_id: the same for all workers of one run.
    :param shared_folder: where the processes of this user meet on the controller's machine; empty where there is
        no such place.
    :param workers: how many workers the controller started.
    :param has_compiled: loaded entries say what their choices were compiled for.
    """

    groups: list[tuple[str, str, bytes]] | None = None
    known_kernels: list[str] | None = None
    run_folder: str = ""
    host: str = ""
    run_id: str = ""
    shared_folder: str = ""
    workers: int = 1
    has_compiled: bool = False

    @property
    def is_local(self) -> bool:
        """Whether this process is on the controller's machine."""
        return self.host == socket.gethostname()


def send_task(workerinput: MutableMapping[str, Any], task: Task) -> None:
    """Put a task into what xdist sends to a worker."""
    workerinput[INPUT_KEY] = asdict(task)


def receive_task(workerinput: Mapping[str, Any]) -> Task:
    """The task that the controller sent; an empty one where it sent none."""
    task: dict[str, Any] = dict(workerinput.get(INPUT_KEY, {}))
    if task.get("groups") is not None:
        task["groups"] = [(str(tuner), str(kernel), bytes(data)) for tuner, kernel, data in task["groups"]]
    return Task(**task)


def send_lines(workeroutput: MutableMapping[str, Any], lines: Sequence[str]) -> None:
    """Put what the controller finds in no file into what xdist sends back."""
    workeroutput[INPUT_KEY] = list(lines)


def receive_lines(node: Any) -> list[str] | None:
    """What a worker has sent; None when it died before it could."""
    lines: list[str] | None = getattr(node, "workeroutput", {}).get(INPUT_KEY)
    return lines
