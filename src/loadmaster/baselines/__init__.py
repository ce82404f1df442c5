"""What plans are compared with, and what searches start from: rules that need no search, or the literature's searches.

One device, expert, list schedulers (`lists`), partitioners (`partition`), contiguous stages (`pipeline`, `downsets`),
fusion as compilers do it (`fusion`), BRKGA (`genetic`), orders that keep memory low (`memory_order`).
"""
