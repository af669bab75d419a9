"""Who tunes: one module for each tuner."""
