"""Learned methods that have no file of their own in `papers` yet. What they share with those lies there.

`regal2020` is such a method; `plans` keeps long searches as a library, `examples` and
`variation` make problems to learn from. Needs torch.
"""
