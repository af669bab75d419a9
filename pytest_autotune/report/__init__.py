"""What is reported: a summary of one run and its faces."""
