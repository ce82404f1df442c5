"""Contiguous stages of one step on consecutive devices: `split` cuts exactly by dynamic programming."""
