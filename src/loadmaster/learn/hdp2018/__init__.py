"""HDP 2018: a grouper and a placer learned together."""
