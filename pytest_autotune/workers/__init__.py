"""What the processes of a run, and of one machine, have in common: events, claims, the GPU."""
