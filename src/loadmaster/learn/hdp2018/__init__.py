"""HDP 2018: a grouper and a placer learned together.

`optimizer` has the method and where it differs from the paper, `policy` its two networks; learning, inputs and weights
are those of `recurrent`.
"""
