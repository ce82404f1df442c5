"""Groups of ops that belong together, and smaller problems made of them."""
