"""What a hand-written kernel runs on."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_autotune import devices
from pytest_autotune.cache.model import Device
from pytest_autotune.tuners.function.errors import TuningError


@dataclass(frozen=True)
class Processor:
    """A device, and what a measurement holds to have it to itself.

    :param lock: the processor's name; empty for the current GPU.
    """

    device: Device
    lock: str = ""

    @property
    def on_gpu(self) -> bool:
        """Whether it is a GPU that torch or CuPy may time."""
        return not self.lock


def processor_of(device: object) -> Processor:
    """What a caller passed as ``device=``.

    :param device: a :class:`Device`; ``"cpu"``, or ``"cuda"`` for the current GPU, also as a
        ``torch.device``; None for the current GPU where the process uses one, else the CPU.
    :raises TuningError: when the process uses no GPU, and that was asked for.
    """
    name = None if device is None or isinstance(device, Device) else str(device)
    if name == "cpu":
        return Processor(devices.cpu(), "cpu")
    gpu = devices.current_gpu()
    if isinstance(device, Device):
        if device == gpu:
            return Processor(device)
        return Processor(device, "cpu" if device == devices.cpu() else device.id)
    if name not in (None, "cuda"):
        raise TypeError(f"device= takes 'cpu', 'cuda' or a pytest_autotune.Device, not {device!r}")
    if gpu is not None:
        return Processor(gpu)
    if name == "cuda":
        raise TuningError("device='cuda': no library of this process uses a GPU yet (allocate the inputs first)")
    return Processor(devices.cpu(), "cpu")
