"""Routings and layers written loop by loop, straight from the equations, in Python floats. Slow and obvious."""
