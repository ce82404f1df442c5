"""Cluster: devices and the links between them; presets of real machines.

`cluster` has the types, `presets` the machines that can be named ("4xp100-pcie", "2xa100@100gbe@2xa100"), each with the
data sheet its figures come from, `growing` the same cluster with a host or more devices, for reports that say what
would help, and reads sizes of memory. A cluster says what there is; `cost.price` says what
a graph takes on it.
"""

from loadmaster.cluster.cluster import GIB, MODES, Cluster, Device, Link, dense_channels
from loadmaster.cluster.presets import preset_names

__all__ = ["GIB", "MODES", "Cluster", "Device", "Link", "dense_channels", "preset_names"]
