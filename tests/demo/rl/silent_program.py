"""A program that never says it is ready, and ends with its parent."""

import sys

sys.stdin.read()
