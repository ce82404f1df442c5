"""Fusion: which ops share a kernel."""
