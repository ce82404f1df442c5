"""Torch modules as graphs: one step is traced and kept op by op.

`export` captures a step of a module on fake tensors, with its backward pass and its updates (`step`), `graph` writes
what was traced as a Graph, `flops` and `traffic` say what each op costs, `values` and `mutation` what is a view, what
is written in place; `signature` is the call as text by which measured times go. `exported` reads .pt2 files, `building`
calls functions that build models without the memory of their tensors, `attention` and `dropout` choose what another
device would run.
"""
