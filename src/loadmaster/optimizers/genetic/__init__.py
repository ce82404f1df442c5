"""BRKGA and its compiled decoder."""
