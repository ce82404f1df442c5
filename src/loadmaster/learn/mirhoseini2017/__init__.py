"""Mirhoseini 2017: a recurrent placer over groups that are given.

`optimizer` has the method and where it differs from the paper, `policy` the network; the rest is in `recurrent`.
"""
