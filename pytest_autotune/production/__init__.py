"""Tuned choices outside of pytest: ``pytest_autotune.use()``, exported modules, and files that other libraries read."""
