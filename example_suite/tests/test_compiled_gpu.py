"""What Inductor makes Triton kernels of; without a GPU this file is not collected."""

from itertools import pairwise

import pytest
import torch
from example_kernels.compiled import mlp, normalised_sums

WIDTHS = [1024, 4096, 2048, 512]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_mlp(dtype, device, generator):
    def random(*shape):
        return torch.randn(shape, device=device, generator=generator) / shape[0] ** 0.5

    x = random(2048, WIDTHS[0])
    weights = [random(*widths) for widths in pairwise(WIDTHS)]
    biases = [random(width) for width in WIDTHS[1:]]
    compiled = torch.compile(mlp, mode="max-autotune-no-cudagraphs")
    actual = compiled(x.to(dtype), [w.to(dtype) for w in weights], [b.to(dtype) for b in biases])
    torch.testing.assert_close(actual.float(), mlp(x, weights, biases), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("shape", [(4096, 1000), (512, 16384)], ids=str)
def test_normalised_sums(shape, device, generator):
    x = torch.randn(shape, device=device, generator=generator)
    compiled = torch.compile(normalised_sums, mode="max-autotune-no-cudagraphs")
    torch.testing.assert_close(compiled(x), normalised_sums(x), rtol=1e-4, atol=1e-4)
