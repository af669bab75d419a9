"""What the processes of one machine agree on: claims, the GPU, cores."""
