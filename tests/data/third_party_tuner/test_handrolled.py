"""What an author of an adapter runs."""

import handrolled
import handrolled_autotune

from pytest_autotune.testing import AdapterConformance


def add_up(items, chunk):
    return sum(sum(items[i : i + chunk]) for i in range(0, len(items), chunk))


class Counted(handrolled.Tuned):
    searches = 0

    def time_all(self, items):
        Counted.searches += 1
        return super().time_all(items)


TUNED = Counted(add_up, [1, 10, 100])


class TestAdapter(AdapterConformance):
    tuner = "handrolled"
    adapter = handrolled_autotune.Adapter

    def tune(self):
        assert TUNED(range(1000)) == 499500
        return TUNED.best[1000]

    def forget(self):
        TUNED.best.clear()

    def searches(self):
        return Counted.searches
