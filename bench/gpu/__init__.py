"""What rose does on an NVIDIA GPU, in one command: `make gpu OUT=dir`. See docs/gpu.md."""
