"""Contiguous stages on consecutive devices."""
