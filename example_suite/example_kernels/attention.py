"""Fused attention, forward only: the softmax is kept running while blocks of keys and values pass by."""

import math

import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({"BLOCK_M": 128, "BLOCK_N": 128}, num_warps=8, num_stages=2),
        triton.Config({"BLOCK_M": 128, "BLOCK_N": 64}, num_warps=8, num_stages=3),
        triton.Config({"BLOCK_M": 128, "BLOCK_N": 64}, num_warps=4, num_stages=3),
        triton.Config({"BLOCK_M": 64, "BLOCK_N": 64}, num_warps=4, num_stages=3),
        triton.Config({"BLOCK_M": 64, "BLOCK_N": 32}, num_warps=4, num_stages=3),
    ],
    key=["n_heads", "n_tokens", "HEAD_DIM", "CAUSAL"],
)
@triton.jit
def attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    scale,
    n_heads,
    n_tokens,
    HEAD_DIM: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    block = tl.program_id(0)
    head = tl.program_id(1)
    # All heads of a batch together may hold more than 2**31 elements.
    base = head.to(tl.int64) * n_tokens * HEAD_DIM
    offs_m = block * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, HEAD_DIM)
    q_offsets = base + offs_m[:, None] * HEAD_DIM + offs_d[None, :]
    q_mask = offs_m[:, None] < n_tokens
    q = tl.load(q_ptr + q_offsets, mask=q_mask, other=0.0)

    highest = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)

    # Causal: keys after this block's last query are never seen. Key 0 is seen by every query, so that `highest`
    # is a number after the first block.
    end = n_tokens
    if CAUSAL:
        end = tl.minimum((block + 1) * BLOCK_M, n_tokens)
    for start in range(0, end, BLOCK_N):
        keys = start + offs_n
        kv_offsets = base + keys[:, None] * HEAD_DIM + offs_d[None, :]
        kv_mask = keys[:, None] < n_tokens

        k = tl.load(k_ptr + kv_offsets, mask=kv_mask, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        seen = keys[None, :] < n_tokens
        if CAUSAL:
            seen = seen & (keys[None, :] <= offs_m[:, None])
        scores = tl.where(seen, scores, float("-inf"))

        highest_now = tl.maximum(highest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - highest_now[:, None])
        rescale = tl.exp2(highest - highest_now)
        total = total * rescale + tl.sum(weights, axis=1)
        highest = highest_now

        v = tl.load(v_ptr + kv_offsets, mask=kv_mask, other=0.0)
        acc = tl.dot(weights.to(v.dtype), v, acc * rescale[:, None])

    out = acc / total[:, None]
    tl.store(out_ptr + q_offsets, out.to(out_ptr.dtype.element_ty), mask=q_mask)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
    """softmax(q @ k.T / sqrt(d)) @ v in fp16 or bf16; every shape is (batch, heads, tokens, d)."""
    if not q.shape == k.shape == v.shape:
        raise ValueError(f"attention() needs equal shapes: {q.shape}, {k.shape}, {v.shape}")
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(f"attention() needs fp16 or bf16, not {q.dtype}")
    batch, heads, n_tokens, head_dim = q.shape
    if head_dim not in (16, 32, 64, 128):
        raise ValueError(f"attention() needs a head dimension of 16, 32, 64 or 128, not {head_dim}")
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    out = torch.empty_like(q)
    n_heads = batch * heads
    scale = math.log2(math.e) / math.sqrt(head_dim)  # The kernel uses exp2, which is cheaper than exp.
    attention_kernel[lambda meta: (triton.cdiv(n_tokens, meta["BLOCK_M"]), n_heads)](
        q, k, v, out, scale, n_heads, n_tokens, HEAD_DIM=head_dim, CAUSAL=causal
    )
    return out
