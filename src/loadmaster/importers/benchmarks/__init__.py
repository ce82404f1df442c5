"""Graphs that others published, in the formats of their authors, and measured times of profilers."""
