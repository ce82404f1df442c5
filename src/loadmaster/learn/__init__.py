"""Learned methods: features of a problem, networks over it, training; then one file per paper."""
