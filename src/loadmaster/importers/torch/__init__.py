"""Torch modules as graphs: one step is traced and kept op by op.

`export` captures a step of a module on fake tensors, with its backward pass and its updates (`step`); it is traced on a
`twin`, so that the module stays as it is, and `caches` of functions keep nothing of it. `graph` writes what was traced
as a Graph, `flops` and `traffic` say what each op costs, `origin` which module and line it is from,
`mutation` what is written in place, `values` works out numbers that a model asks for; `signature` is the call as text
by which measured times go. `exported` reads .pt2 files, `building` calls functions that build models without the memory
of their tensors, `attention` is what another device would run, and `dropout` where nothing is dropped.
"""
