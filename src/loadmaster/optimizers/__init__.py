"""Optimizers: a file or a package per family; every one a frozen dataclass with `optimize(search)`.

From cheap to dear: rules that need no search (`simple`, `cuts`, `dealing`, `grouped`, `balancing`, `expert`, `lists`,
`partition`, `pipeline`, `downsets`); searches (`annealing`, `genetic`, `fusion`, `branching`, `exact`); what puts these
together: `auto` (placement and order), `joint` (fusion too), `complete` (the default), `multilevel` for graphs too
large to search whole, `islands` for several machines; and `memory`, which makes plans fit. `starts` and `ordering` are
what searches begin with, `experience` and `policy` what was learned before. `catalog` has their names.
"""
