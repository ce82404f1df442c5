"""Plans on real devices: run them, and measure what they and their ops take."""
