"""BRKGA: a biased random-key genetic algorithm, REGAL's search and its baseline.

`brkga` has the method and how genes become plans, `breeding` the compiled generation: draw, cross, decode, simulate.
`papers.regal2020` has a network say where genes are drawn from.
"""
