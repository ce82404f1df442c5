"""Graph partitioners as placers: METIS, Scotch, KaHIP and Mt-KaHyPar, each through its own package.

`parts` makes weighted units and nets of a problem, `partitioners` has the methods and repairs what is over its memory.
"""
