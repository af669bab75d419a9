"""What happens in one run: looking up, recording, coordinating."""
