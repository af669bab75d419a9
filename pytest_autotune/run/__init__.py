"""One run: lookups, tunings, and the result at the end. This room knows no pytest."""
