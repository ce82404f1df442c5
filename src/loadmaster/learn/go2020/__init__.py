"""GO 2020: one network for fusion, placement and schedule."""
