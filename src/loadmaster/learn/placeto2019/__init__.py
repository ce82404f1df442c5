"""Placeto 2019: a policy that walks over groups."""
