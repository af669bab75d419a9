"""alpha * x + y in Helion, with a list of configs. Helion measures each config."""

import helion
import helion.language as hl
import torch


def scale_and_add(alpha, x, y):
    return alpha * x + y


@helion.kernel(configs=[helion.Config(block_sizes=[size]) for size in (256, 1024, 4096)])
def axpy(alpha: float, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = scale_and_add(alpha, x[tile], y[tile])
    return out
