"""Fusion: which ops share a kernel.

`spaces` says which loops can be one, after what PyTorch's Inductor generates, and which pairs can share a kernel at
all; `merging` is the compiled loop that merges pair by pair and keeps kernels from waiting for themselves; `greedy`
is the default rule of compilers, and tells bounds what a search may fuse.
"""
