"""Methods that people plan with, one package or file each; every one a frozen dataclass with `optimize(search)`.

`default` is what `auto`, `joint` and `placement` name; `annealing` its walk; `memory` makes plans fit; `multilevel` is
for graphs too large to search whole, `islands` for several machines, `splitting` and `whole` for modules; `exact`
proves; `experience` and `policy` are what was learned before. Methods the papers compare with are in `baselines`.
"""
