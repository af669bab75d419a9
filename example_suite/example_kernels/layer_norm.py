"""Layer norm over the last dimension, forward and backward."""

from typing import Any

import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 512}, num_warps=4),
        triton.Config({"BLOCK": 1024}, num_warps=4),
        triton.Config({"BLOCK": 2048}, num_warps=8),
        triton.Config({"BLOCK": 4096}, num_warps=8),
    ],
    key=["n_rows", "n_cols"],
)
@triton.jit
def layer_norm_forward_kernel(x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, rstd_ptr, n_rows, n_cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x_ptr += row * n_cols
    y_ptr += row * n_cols
    cols = tl.arange(0, BLOCK)

    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n_cols, BLOCK):
        total += tl.load(x_ptr + start + cols, mask=start + cols < n_cols, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / n_cols

    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n_cols, BLOCK):
        mask = start + cols < n_cols
        x = tl.load(x_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
        centred = tl.where(mask, x - mean, 0.0)
        squares += centred * centred
    rstd = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / n_cols + eps)

    for start in range(0, n_cols, BLOCK):
        mask = start + cols < n_cols
        x = tl.load(x_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
        b = tl.load(b_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
        y = (x - mean) * rstd * w + b
        tl.store(y_ptr + start + cols, y.to(y_ptr.dtype.element_ty), mask=mask)

    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)


# Every program walks ROWS rows, keeps its part of dw and db in registers and adds it to the totals once.
# The totals must be zero before each launch: the caller's zeros serve the real launch, reset_to_zero the timed ones.
@triton.autotune(
    configs=[
        triton.Config({"ROWS": 4}, num_warps=4),
        triton.Config({"ROWS": 16}, num_warps=4),
        triton.Config({"ROWS": 16}, num_warps=8),
        triton.Config({"ROWS": 64}, num_warps=8),
    ],
    key=["n_rows", "n_cols"],
    reset_to_zero=["dw_ptr", "db_ptr"],
)
@triton.jit
def layer_norm_backward_kernel(
    dy_ptr,
    x_ptr,
    w_ptr,
    mean_ptr,
    rstd_ptr,
    dx_ptr,
    dw_ptr,
    db_ptr,
    n_rows,
    n_cols,
    ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    cols = tl.arange(0, BLOCK_COLS)
    mask = cols < n_cols
    w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    dw = tl.zeros([BLOCK_COLS], dtype=tl.float32)
    db = tl.zeros([BLOCK_COLS], dtype=tl.float32)

    first = tl.program_id(0) * ROWS
    for row in range(first, tl.minimum(first + ROWS, n_rows)):
        dy = tl.load(dy_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
        mean = tl.load(mean_ptr + row)
        rstd = tl.load(rstd_ptr + row)

        normed = tl.where(mask, (x - mean) * rstd, 0.0)
        dnormed = dy * w
        along_x = tl.sum(dnormed * normed, axis=0) / n_cols
        along_1 = tl.sum(dnormed, axis=0) / n_cols
        dx = (dnormed - along_1 - normed * along_x) * rstd
        tl.store(dx_ptr + row * n_cols + cols, dx.to(dx_ptr.dtype.element_ty), mask=mask)

        dw += dy * normed
        db += dy

    tl.atomic_add(dw_ptr + cols, dw, mask=mask)
    tl.atomic_add(db_ptr + cols, db, mask=mask)


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, eps: float) -> torch.Tensor:
        x = x.contiguous()
        n_cols = x.shape[-1]
        n_rows = x.numel() // n_cols
        y = torch.empty_like(x)
        mean = torch.empty(n_rows, dtype=torch.float32, device=x.device)
        rstd = torch.empty_like(mean)
        layer_norm_forward_kernel[(n_rows,)](x, w, b, y, mean, rstd, n_rows, n_cols, eps)
        ctx.save_for_backward(x, w, mean, rstd)
        ctx.bias_dtype = b.dtype
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        x, w, mean, rstd = ctx.saved_tensors
        dy = dy.contiguous()
        n_cols = x.shape[-1]
        n_rows = x.numel() // n_cols
        dx = torch.empty_like(x)
        dw = torch.zeros(n_cols, dtype=torch.float32, device=x.device)
        db = torch.zeros_like(dw)
        layer_norm_backward_kernel[lambda meta: (triton.cdiv(n_rows, meta["ROWS"]),)](
            dy, x, w, mean, rstd, dx, dw, db, n_rows, n_cols, BLOCK_COLS=triton.next_power_of_2(n_cols)
        )
        return dx, dw.to(w.dtype), db.to(ctx.bias_dtype), None


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """Layer norm over the last dimension; gradients flow to x, w and b."""
    return LayerNorm.apply(x, w.contiguous(), b.contiguous(), eps)
