"""The paper's evaluation as something that runs: its two tables, its complexity analysis, its figures."""
