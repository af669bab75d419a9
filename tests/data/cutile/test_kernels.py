"""A suite that uses cuTile's own tuner. Nothing in it knows pytest-autotune."""

import cuda.tile as ct
import host
import pytest
from cuda.tile.tune import exhaustive_search
from tile_kernels import matmul, scale


@pytest.mark.parametrize("size", [1 << 12, 1 << 14])
def test_scale(size):
    x, y = host.make_tensor(size), host.make_tensor(size)
    space = [{"T": t, "occupancy": occupancy} for t in (256, 1024) for occupancy in (1, 4)]

    def find_grid(config):
        return (ct.cdiv(size, config["T"]),)

    result = exhaustive_search(
        space,
        host.find_stream(),
        find_grid,
        scale,
        lambda config: (x, y, config["T"]),
        lambda config: {"occupancy": config["occupancy"]},
        quiet=True,
    )
    assert result.best.config in space


def test_matmul():
    m, n, k = 256, 128, 64
    a, b = host.make_tensor(m, k, dtype="float16"), host.make_tensor(k, n, dtype="float16")
    c = host.make_tensor(m, n, dtype="float16")
    space = [{"tile": (tm, 64), "tk": tk} for tm in (64, 128) for tk in (32, 64)]

    def list_arguments(config):
        return (a, b, c, *config["tile"], config["tk"])

    result = exhaustive_search(
        space,
        host.find_stream(),
        lambda config: (ct.cdiv(m, config["tile"][0]), ct.cdiv(n, config["tile"][1])),
        matmul,
        list_arguments,
        quiet=True,
    )
    assert result.best.config in space
