"""The only place that times a candidate: clocks, the race between candidates, and statistics of their times."""
