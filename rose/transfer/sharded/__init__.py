"""Trainers and engines of several ranks: they find each other, plan, and commit together."""
