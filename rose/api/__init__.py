"""Public names of `import rose`: devices, requests, sequences, steps and versions.

Each name is loaded on first use, so `import rose` costs a serving process nothing.
"""
