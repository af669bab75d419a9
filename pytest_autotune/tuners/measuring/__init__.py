"""The only place that times a candidate: clocks, the race between candidates, and what its times come to."""
