"""List schedulers and the compiled loops they share.

`schedulers` has HEFT, CPOP and ETF with their variants, `rolling` a schedule that is decided a few ops at a time in
several ways, `loop`, `earliest` and `steps` the compiled loops, `ranks` the priorities. They model sends and channels
as they go, by the rules of the simulator as far as an op at a time allows.
"""
