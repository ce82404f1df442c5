"""Branch and bound over all timelines of small problems."""
