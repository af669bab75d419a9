"""activation(a @ b), accumulated in fp32."""

import torch
import triton
import triton.language as tl


@triton.jit
def relu(x):
    return tl.maximum(x, 0.0)


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))


def _config(block_m: int, block_n: int, block_k: int, num_warps: int, num_stages: int) -> triton.Config:
    blocks = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP_M": 8}
    return triton.Config(blocks, num_warps=num_warps, num_stages=num_stages)


# In fp32 the largest of these need up to 144 KiB of shared memory. On a GPU that has less, Triton times those that fit.
@triton.autotune(
    configs=[
        _config(128, 256, 32, num_warps=8, num_stages=4),
        _config(128, 128, 64, num_warps=8, num_stages=3),
        _config(128, 128, 32, num_warps=4, num_stages=4),
        _config(128, 64, 64, num_warps=4, num_stages=3),
        _config(64, 128, 64, num_warps=4, num_stages=3),
        _config(64, 64, 64, num_warps=4, num_stages=4),
        _config(64, 64, 32, num_warps=4, num_stages=5),
        _config(64, 32, 64, num_warps=4, num_stages=4),
        _config(32, 64, 64, num_warps=4, num_stages=4),
        _config(32, 32, 64, num_warps=2, num_stages=4),
    ],
    key=["M", "N", "K"],
)
@triton.jit
def matmul_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    # Programs that run at the same time share GROUP_M rows of blocks, so that both operands stay in the L2 cache.
    pid = tl.program_id(0)
    programs_m = tl.cdiv(M, BLOCK_M)
    programs_n = tl.cdiv(N, BLOCK_N)
    group = pid // (GROUP_M * programs_n)
    group_rows = tl.minimum(programs_m - group * GROUP_M, GROUP_M)
    within = pid % (GROUP_M * programs_n)
    pid_m = group * GROUP_M + within % group_rows
    pid_n = within // group_rows

    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
    mask_m = offs_m[:, None] < M
    mask_n = offs_n[None, :] < N

    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        a = tl.load(a_ptrs, mask=mask_m & (offs_k[None, :] < K - start), other=0.0)
        b = tl.load(b_ptrs, mask=mask_n & (offs_k[:, None] < K - start), other=0.0)
        # "ieee" speaks of fp32 only: no rounding to tf32.
        acc = tl.dot(a, b, acc, input_precision="ieee")
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk

    if ACTIVATION == "relu":
        acc = relu(acc)
    elif ACTIVATION == "silu":
        acc = silu(acc)

    c_ptrs = c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=mask_m & mask_n)


def matmul(a: torch.Tensor, b: torch.Tensor, activation: str | None = None) -> torch.Tensor:
    """activation(a @ b) of two matrices in fp16, bf16 or fp32; activation is None, "relu" or "silu"."""
    if a.shape[1] != b.shape[0] or a.dtype != b.dtype:
        raise ValueError(f"matmul() cannot multiply {a.shape}, {a.dtype} by {b.shape}, {b.dtype}")
    if activation not in (None, "relu", "silu"):
        raise ValueError(f"matmul() does not know the activation {activation!r}")
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    matmul_kernel[lambda meta: (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)](
        a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(), ACTIVATION=activation
    )
    return c
