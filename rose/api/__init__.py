"""Public names of `import rose`: devices, requests, sequences, steps and versions.

Each module is loaded on first use of its names, so `import rose` takes almost no time.
"""
