"""REGAL 2020: a network tells BRKGA where to draw its genes from (Paliwal et al., arXiv 1905.02494).

`method` is the search, `networks` the graph network and the sequence one (GAS), `actions` what a policy can say,
`losses`, `training` and `rollouts` how it learns, `summary` what was learned, in numbers.
"""
