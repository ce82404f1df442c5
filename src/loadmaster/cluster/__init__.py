"""Cluster: devices and the links between them; presets of real machines."""

from loadmaster.cluster.cluster import GIB, MODES, Cluster, Device, Link, dense_channels
from loadmaster.cluster.presets import preset_names

__all__ = ["GIB", "MODES", "Cluster", "Device", "Link", "dense_channels", "preset_names"]
