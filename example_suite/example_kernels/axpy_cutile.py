"""``alpha * x + y`` on a GPU: a kernel of cuTile that is tuned by hand.

``pytest_autotune.tune`` has a key, a check of the result, a set-up, and compilation in threads before anything is
measured. cuTile's own search has none of these.
"""

import io

import cuda.tile as ct
import torch
from cuda.tile.compilation import CallingConvention, KernelSignature, export_kernel

import pytest_autotune

SPACE = pytest_autotune.product(TILE=[256, 1024, 4096], occupancy=[1, 4])


@ct.kernel
def axpy_kernel(x, y, out, ALPHA: ct.Constant[float], TILE: ct.Constant[int]):
    i = ct.bid(0)
    total = ct.load(x, index=(i,), shape=(TILE,)) * ALPHA + ct.load(y, index=(i,), shape=(TILE,))
    ct.store(out, index=(i,), tile=total)


def compile_ahead(config, arguments):
    """Compile a configuration into cuTile's cache on disk, where its first launch finds it."""
    kernel = axpy_kernel.replace_hints(occupancy=config["occupancy"])
    signature = KernelSignature.from_kernel_args(kernel, arguments, CallingConvention.cutile_python_v1())
    major, minor = torch.cuda.get_device_capability()
    export_kernel(kernel, [signature], io.BytesIO(), gpu_code=f"sm_{major}{minor}", output_format="cubin")
    return kernel


def axpy(alpha: float, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``alpha * x + y`` of two vectors."""
    out = torch.empty_like(x)

    def launch(config, kernel):
        grid = (ct.cdiv(x.numel(), config["TILE"]),)
        ct.launch(torch.cuda.current_stream(), grid, kernel, (x, y, out, alpha, config["TILE"]))

    config = pytest_autotune.tune(
        "example_kernels.axpy_cutile.axpy",
        key={"size": pytest_autotune.power_of_two(x.numel()), "dtype": x.dtype},
        space=SPACE,
        compile=lambda config: compile_ahead(config, (x, y, out, alpha, config["TILE"])),
        run=launch,
        setup=lambda config: out.zero_(),
        verify=lambda config, _: torch.allclose(out, alpha * x + y),
        source=[axpy_kernel, launch],
        version=ct.__version__,
        device="cuda",
    )
    launch(config, axpy_kernel.replace_hints(occupancy=config["occupancy"]))
    return out
