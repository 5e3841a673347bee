"""Runs: what is asked of one (config), and the folder that it leaves (directory).

A room of its own, below training and inference: who loads or serves a network needs to read a run, and must not need a trainer for it.
"""
