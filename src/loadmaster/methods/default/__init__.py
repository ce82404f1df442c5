"""The default search. In comes a Search, out comes the best plan found: kernels, devices and order together.

`search` is the loop, `starts` the plans by rules it begins from, `walk` what improves one of them, `fitting` what makes
a plan fit into memory. `auto`, `joint` and `placement` are settings of the one search.
"""
