"""The adapter for Helion, which searches for the configs of ``@helion.kernel``."""
