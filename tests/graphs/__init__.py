"""Tiny named graphs, small enough to run by hand."""

from tests.graphs.tiny import GRAPHS, pair

__all__ = ["GRAPHS", "pair"]
