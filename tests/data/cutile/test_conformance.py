"""The conformance tests of the adapter for cuTile."""

from typing import ClassVar

import cuda.tile.tune
import host
from tile_kernels import scale

from pytest_autotune.testing import AdapterConformance
from pytest_autotune.tuners.cutile.adapter import Adapter

X, Y = host.make_tensor(4096), host.make_tensor(4096)
REMEMBERS_NOTHING = "exhaustive_search() remembers nothing, so a second call asks again"


class TestCuTile(AdapterConformance):
    tuner = "cutile"
    adapter = Adapter
    exempt: ClassVar = {
        "test_isolated_calls_share_no_choice_with_other_calls": REMEMBERS_NOTHING,
        "test_two_equal_calls_record_one_entry_with_its_choice": REMEMBERS_NOTHING,
    }

    def tune(self):
        result = cuda.tile.tune.exhaustive_search(
            [{"T": 256}, {"T": 1024}],
            host.find_stream(),
            lambda config: (4096 // config["T"],),
            scale,
            lambda config: (X, Y, config["T"]),
            quiet=True,
        )
        return result.best.config

    def forget(self):
        pass

    def searches(self):
        return host.count_searches(candidates=2)
