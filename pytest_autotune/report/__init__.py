"""What is reported: a result of one run and its renderers."""
