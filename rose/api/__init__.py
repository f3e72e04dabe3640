"""What `import rose` offers: devices, requests, sequences, steps and versions.

Each name is loaded when it is first used, so importing rose costs a serving process nothing.
"""
