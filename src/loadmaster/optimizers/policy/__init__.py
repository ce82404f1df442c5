"""A learned list scheduler: ops one by one, each to the device that a small network favours."""
