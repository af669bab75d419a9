"""``cutile``: the configuration that cuTile's ``exhaustive_search`` chooses for a kernel."""
