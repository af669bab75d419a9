"""The races of loaded choices in one process: whose turn it is, and whether there is time left for one."""

from __future__ import annotations

from pytest_autotune.cache.model import Problem
from pytest_autotune.run.distributed import in_distributed_run
from pytest_autotune.run.verify import TIME_OVER, Verification


class Races:
    """What a process spends on races.

    :param verify: whose turn it is; None where nobody's is.
    """

    def __init__(self, verify: Verification | None) -> None:
        self._verify = verify
        #: Seconds.
        self.spent_s = 0.0

    def has_turn(self, problem: Problem) -> bool:
        """Whether a hit on this problem is to be raced."""
        return self._verify is not None and self._verify.share.has_turn(problem)

    @property
    def left_s(self) -> float:
        """The seconds that are left for races."""
        return 0.0 if self._verify is None else self._verify.seconds - self.spent_s

    @property
    def why_none(self) -> str:
        """Why no race may begin now; empty where one may."""
        if in_distributed_run():  # ranks that race a kernel with a collective would wait for each other
            return "one of several ranks"
        return "" if self.left_s > 0 else TIME_OVER
