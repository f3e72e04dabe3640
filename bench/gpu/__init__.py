"""The device suite, in one command: `make gpu OUT=dir`. See docs/gpu.md."""
