"""Everything that imports pytest."""
