"""Passes: Problem to Problem, with one way back. `fusing` makes kernels one op, `chaining` joins small ops in a row,
`blocks` joins stretches of the program, `windows` cuts a part out of a step, `groups` says which ops belong together;
`coarsen` is the way there, and `Coarse.up` the way back.

Others go from Graph to Graph, before anything is priced: `splitting` has ops in parts or on every device, `stages` and
`microbatches` make a pipeline of a step, and `pipelined` is what such a graph remembers of that.
"""

from loadmaster.passes.coarse import Coarse, coarsen
from loadmaster.passes.fusing import fuse, inner_tensors

__all__ = ["Coarse", "coarsen", "fuse", "inner_tensors"]
