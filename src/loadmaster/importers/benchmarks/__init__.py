"""Graphs that other planners were published with, in the formats of their authors."""
