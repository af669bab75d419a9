"""Reads the CI run that a pytest process belongs to from the process's environment variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: The user's own name of a run. It replaces the id of the CI system.
RUN_ID_VARIABLE = "AUTOTUNE_RUN_ID"
#: Environment variables with the id of a CI run: of GitHub, GitLab, Azure, Buildkite, CircleCI and Jenkins.
_ID_VARIABLES = (
    RUN_ID_VARIABLE,
    "GITHUB_RUN_ID",
    "CI_PIPELINE_ID",
    "BUILD_BUILDID",
    "BUILDKITE_BUILD_ID",
    "CIRCLE_WORKFLOW_ID",
    "BUILD_TAG",
)
#: Environment variables that grow when a job of the same run is repeated: of GitHub, GitLab, Azure and Buildkite.
_ATTEMPT_VARIABLES = ("GITHUB_RUN_ATTEMPT", "CI_JOB_ID", "SYSTEM_JOBATTEMPT", "BUILDKITE_RETRY_COUNT")
#: Environment variables that name a job: of GitHub, GitLab, Azure, Buildkite and CircleCI.
_JOB_VARIABLES = ("GITHUB_JOB", "CI_JOB_NAME", "SYSTEM_JOBNAME", "BUILDKITE_STEP_ID", "CIRCLE_JOB")


@dataclass(frozen=True)
class CiRun:
    """The CI run that a pytest process belongs to, and the command of the process.

    :param id: the run's id; empty outside CI.
    :param attempt: a number that grows when a job of the run is repeated; 0 if there is none.
    :param job: the name of the job; empty outside CI.
    :param command: as the user typed it, without the options of the ini file and of ``PYTEST_ADDOPTS``.
    :param folder: the folder of the command, relative to the Git repository; without one, to pytest's rootdir.
    :param process_id: a random UUID of the pytest process; not its PID.
    """

    id: str = ""
    attempt: int = 0
    job: str = ""
    command: str = ""
    folder: str = ""
    process_id: str = ""


def read_ci_run(environment: Mapping[str, str]) -> CiRun:
    """Return the CI run of the process with this environment."""
    attempt = find_first_variable(environment, _ATTEMPT_VARIABLES)
    number = int(attempt) if attempt.isdecimal() else 0
    run_id = find_first_variable(environment, _ID_VARIABLES)
    return CiRun(run_id, number, find_first_variable(environment, _JOB_VARIABLES))


def find_first_variable(environment: Mapping[str, str], names: Iterable[str]) -> str:
    """Return the value of the first variable that is set and not empty; else an empty text."""
    for name in names:
        value = environment.get(name)
        if value:
            return value
    return ""
