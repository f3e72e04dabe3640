"""Versions of a model as training leaves them: pretrained here, then improved by RL, step by step.

Which elements change from one version to the next, and by how much, follows from the optimizer, so
claims about the codec rest on these and not on noise. Made when missing, kept under `build/`.
"""
