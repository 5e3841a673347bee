"""Runs: their configuration, and the directory that they leave.

A package of its own, below training and inference: loading or serving a network requires reading a run, and must not require a trainer.
"""
