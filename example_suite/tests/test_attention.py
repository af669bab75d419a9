import pytest
import torch
import triton
from example_kernels.attention import attention

INTERPRETED = triton.knobs.runtime.interpret
SHAPES = [(1, 2, 40, 16), (1, 1, 96, 32)] if INTERPRETED else [(2, 16, 2048, 64), (1, 8, 1000, 128)]
DTYPES = [torch.float16] if INTERPRETED else [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention(shape, causal, dtype, device, generator):
    q, k, v = (torch.randn(shape, dtype=dtype, device=device, generator=generator) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=causal)
    tolerance = 5e-3 if dtype == torch.float16 else 2e-2
    torch.testing.assert_close(attention(q, k, v, causal), expected.to(dtype), rtol=tolerance, atol=tolerance)


def test_a_query_never_sees_later_keys(device, generator):
    q, k, v = (torch.randn(SHAPES[0], dtype=torch.float16, device=device, generator=generator) for _ in range(3))
    before = attention(q, k, v, causal=True)
    half = q.shape[2] // 2
    k[:, :, half:], v[:, :, half:] = 7.0, 7.0
    torch.testing.assert_close(attention(q, k, v, causal=True)[:, :, :half], before[:, :, :half])
