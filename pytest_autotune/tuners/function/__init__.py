"""The tuner of hand-written kernels: one call that is cached, shared and reported like the tuners of libraries."""
