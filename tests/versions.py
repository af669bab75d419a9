"""Run the tests that concern a library with other versions of it.

    python tests/versions.py                              # the versions to try, by name
    python tests/versions.py triton-3.4.0 lowest          # these
    python tests/versions.py triton-9.9.0 python-3.13     # and any other, by library and version
    python tests/versions.py triton-newest torch-pre      # the newest release, and the newest pre-release
    python tests/versions.py --json                       # the versions to try, as one list for a matrix of CI
    python tests/versions.py lowest --tests="tests/acceptance -k 'not n2'"

It needs no GPU. A library is put before what is installed for the Python that runs this. What decides on others, a
torch, a JAX, a Python and the lowest of all, gets an environment of its own; with torch and JAX it takes some
gigabytes. All of it is made once, in ``.venv/versions`` or in the folder that ``VERSIONS`` names; what a run says goes
to a file there. A Python is called as ``python3.13``. The exit status is 1 where one failed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = Path(os.environ.get("VERSIONS", ROOT / ".venv" / "versions"))
ALWAYS = ("pytest-timeout", "hypothesis", "setuptools", "pip")
EVERYTHING = ("tests",)
# The interpreter of Triton 3.4 leaves its language changed. Tests that compile, or that read the names of the language,
# need another process.
TRITON = (
    "tests/test_triton.py tests/test_triton_identity.py tests/test_triton_pruning.py",
    "tests/test_triton_compiled.py",
    "tests/test_library_names.py",
)
TORCH = ("tests/test_inductor.py tests/test_inductor_benchmarks.py tests/test_function_tuner.py",)
JAX = ("tests/test_xla_deviceless.py tests/test_xla_files.py tests/acceptance/test_xla.py",)
STORES = ("tests/test_segments.py",)
FORMATS = ("tests/test_formats.py tests/test_formats_fuzz.py tests/test_stores.py",)


@dataclass(frozen=True)
class Version:
    """One version to try.

    :param requirements: as pip takes them; in an environment of its own, beside this package and what it needs.
    :param tests: pytest's arguments, for each process of it.
    :param python: of an environment of its own; none where the libraries go before what is installed.
    :param plugin: JAX's plugin for CUDA, of which only a library is used: nothing of CUDA is installed.
    :param pip_options: further options of ``pip install``.
    :param is_moving: whether the index may have another version tomorrow.
    """

    requirements: tuple[str, ...]
    tests: tuple[str, ...] = EVERYTHING
    python: str = ""
    plugin: str = ""
    pip_options: tuple[str, ...] = ()
    is_moving: bool = False


#: Words in place of a version, and pip's options for them.
MOVING: dict[str, tuple[str, ...]] = {"newest": (), "pre": ("--pre",)}


def _requirement(library: str, version: str) -> str:
    if version in MOVING:
        return library
    return f"{library}=={version}"


def _is_before(version: str, numbers: tuple[int, int]) -> bool:
    return version not in MOVING and _numbers(version) < numbers


def _triton(version: str) -> Version:
    requirements = [_requirement("triton", version)]
    # The interpreter of older ones does not run with newer numpy.
    if _is_before(version, (3, 7)):
        requirements.append("numpy<2.4")
    return Version(tuple(requirements), TRITON)


def _torch(version: str) -> Version:
    return Version((_requirement("torch", version), "numpy"), TORCH, "python3.11")


def _jax(version: str) -> Version:
    python = "python3.12"
    if _is_before(version, (0, 11)):
        python = "python3.11"
    libraries = (_requirement("jax", version), _requirement("jaxlib", version))
    return Version(libraries, JAX, python, _requirement("jax-cuda13-pjrt", version))


def _pytest(version: str) -> Version:
    # Another release of pytest may need other releases of its own dependencies.
    if version in MOVING:
        return Version(("pytest", "triton", "numpy"), EVERYTHING, "python3.11")
    return Version((f"pytest=={version}",))


def _python(version: str) -> Version:
    return Version(("triton", "numpy"), EVERYTHING, f"python{version}")


#: From the name of a library to a function that gives its tests with one version.
LIBRARIES: dict[str, Callable[[str], Version]] = {
    "jax": _jax,
    "obstore": lambda version: Version((_requirement("obstore", version),), STORES),
    "protobuf": lambda version: Version((_requirement("protobuf", version),), FORMATS),
    "pytest": _pytest,
    "python": _python,
    "torch": _torch,
    "triton": _triton,
}
TO_TRY = {
    "triton": ["3.4.0", "3.5.1", "3.6.0", "3.7.1", "3.8.0", "3.9.0"],
    "torch": ["2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0"],
    "jax": ["0.10.2", "0.11.2"],
    "protobuf": ["4.25.9", "5.29.6", "6.33.6"],
    "obstore": ["0.9.0", "0.11.1"],
    "pytest": ["8.0.0", "8.4.2"],
    "python": ["3.10", "3.12", "3.13", "3.14"],
}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _lowest() -> Version:
    """The lowest of every version that pyproject.toml allows, on the lowest Python."""
    text = (ROOT / "pyproject.toml").read_text()
    depended = re.search(r"^dependencies = \[(.*?)\]", text, re.DOTALL | re.MULTILINE)
    assert depended is not None
    lowest = re.findall(r'"([\w-]+)>=([\d.]+)"', depended[1])
    lowest += re.findall(r'^(?:xdist|triton) = \["([\w-]+)>=([\d.]+)"\]', text, re.MULTILINE)
    return Version((*(f"{name}=={version}" for name, version in lowest), "numpy<2.4"), EVERYTHING, "python3.10")


def version_of(name: str) -> Version:
    """Return the version to try that a name stands for.

    :raises SystemExit: if the name is unknown.
    """
    if name == "lowest":
        return _lowest()
    library, _, version = name.partition("-")
    if library not in LIBRARIES or not version:
        sys.exit(f"{name}: expected lowest, or LIBRARY-VERSION with one of {', '.join(LIBRARIES)}")
    if version in MOVING:
        return replace(LIBRARIES[library](version), pip_options=MOVING[version], is_moving=True)
    return LIBRARIES[library](version)


def _made(folder: Path, version: Version) -> None:
    """Install what there is to install, once; what the index may have replaced, in each run."""
    if (folder / "ready").exists() and not version.is_moving:
        return
    pip = [sys.executable, "-m", "pip", "install", "--upgrade", *version.pip_options]
    if not version.is_moving:
        pip.append("--quiet")  # else the log says which version it is today
    if not version.python:
        subprocess.run([*pip, "--no-deps", "--target", folder, *version.requirements], check=True)
    else:
        subprocess.run([version.python, "-m", "venv", folder], check=True)
        pip[0] = str(folder / "bin" / "python")
        subprocess.run([*pip, "-e", f"{ROOT}[xdist]", *ALWAYS, *version.requirements], check=True)
        if version.plugin:
            subprocess.run([*pip, "--no-deps", "--target", folder / "plugin", version.plugin], check=True)
    (folder / "ready").touch()


def run(name: str, version: Version) -> bool:
    """Run the tests, say what came of them in a line, and whether that is good."""
    folder = FOLDER / name
    _made(folder, version)
    python = folder / "bin" / "python" if version.python else sys.executable
    variables = {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)] if not version.python else [str(ROOT)])}
    if plugins := list(folder.glob("plugin/jax_plugins/*/xla_cuda_plugin.so")):
        variables["XLA_CUDA_PLUGIN"] = str(plugins[0])
    log = FOLDER / f"{name}.log"
    statuses = []
    with log.open("w") as output:
        for tests in version.tests:
            done = subprocess.run(
                [python, "-m", "pytest", "-q", "-n2", "--dist=loadfile", *shlex.split(tests)],
                cwd=ROOT,
                env={**os.environ, **variables},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            statuses.append(done.returncode)
    result_lines = re.findall(r"^(?:FAILED|ERROR) .*|^\d+ \w+.* in [\d.]+s\b.*$", log.read_text(), re.MULTILINE)
    print(f"{name} ({' '.join(version.requirements)}): {log}", *result_lines, sep="\n    ", flush=True)
    return not any(statuses)


def main(arguments: list[str]) -> int:
    if arguments == ["--json"]:
        to_try = ["lowest"]
        for library, versions in TO_TRY.items():
            to_try += [f"{library}-{version}" for version in versions]
        print(json.dumps(to_try))
        return 0
    names = [argument for argument in arguments if not argument.startswith("--tests=")]
    tests = [argument.partition("=")[2] for argument in arguments if argument.startswith("--tests=")]
    if not names:
        for library, versions in TO_TRY.items():
            print(*(f"{library}-{version}" for version in versions))
        print("lowest")
    results = []
    for name in names:
        version = version_of(name)
        results.append(run(name, replace(version, tests=tuple(tests)) if tests else version))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
