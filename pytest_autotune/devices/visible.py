"""The GPUs that processes of this machine would use: nothing is initialised in this one."""

from __future__ import annotations

import glob
import os
import re
import subprocess
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from pytest_autotune import devices
from pytest_autotune.cache.model import Device
from pytest_autotune.devices import cuda_driver


def visible_nvidia_gpus() -> list[str]:
    """What ``CUDA_VISIBLE_DEVICES`` may name now, one word for each GPU; asks the driver and makes no context."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [word.strip() for word in visible.split(",") if word.strip()]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(number) for number in range(sum(line.startswith("GPU ") for line in listed.splitlines()))]


def only_type(known: Collection[Device], shown: str = "/proc/driver/nvidia/gpus/*/information") -> Device | None:
    """The device that all GPUs of this machine are, if it is one of these; None where it cannot be seen.

    It costs nothing, unlike :func:`first_gpu`.

    :param shown: where NVIDIA's driver says what there is.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and (not visible or visible.strip().startswith(("-", "MIG", "NoDev"))):
        return None
    models = set()
    for path in glob.glob(shown):
        with suppress(OSError):
            models |= set(re.findall(r"^Model:\s*(.+?)\s*$", Path(path).read_text(errors="replace"), re.MULTILINE))
    found = [device for device in known if models == {device.name}]
    return found[0] if len(found) == 1 else None


def first_gpu() -> Device | None:
    """The type of the first GPU that NVIDIA's driver shows to processes like this one; it takes a second or more."""
    gpu = cuda_driver.first_gpu()
    return devices.of_driver(gpu) if gpu is not None else None
