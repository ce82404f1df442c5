"""Local search and simulated annealing over placement and order."""
