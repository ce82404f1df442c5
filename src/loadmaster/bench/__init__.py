"""Benchmarks: suites of problems, every method on each, and the tables that come of it."""
