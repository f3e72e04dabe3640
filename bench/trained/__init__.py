"""Versions of a model as training leaves them: pretrained here, then improved by RL, step by step.

The optimizer determines which elements change between two versions and by how much, so claims about
the codec use these versions and not noise. They are made if missing, and kept under `build/`.
"""
