"""The model of a cache, its formats, merging and storing. Knows no pytest and no GPU library."""
