"""What tuners share."""
