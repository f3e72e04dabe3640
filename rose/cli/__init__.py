"""The command line: `rose demo`, `rose doctor`, `rose verify`."""
