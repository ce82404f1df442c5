"""REGAL 2020: a network that steers BRKGA; GAS, the same over a sequence."""
