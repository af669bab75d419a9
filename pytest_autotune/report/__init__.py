"""What is told: a summary of one run and its faces."""
