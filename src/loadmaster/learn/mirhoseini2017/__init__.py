"""Mirhoseini 2017: a recurrent placer."""
