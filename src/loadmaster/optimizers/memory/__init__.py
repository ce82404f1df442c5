"""Orders that keep memory low."""
