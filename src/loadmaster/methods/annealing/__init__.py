"""Local search and simulated annealing over placement and order.

`anneal` has the two methods, `chains` walks a few chains side by side and says how long and how hot coolings are,
`engine` is the compiled loop: a move is drawn, applied (`moves`), simulated, and kept or taken back. `choice` says
which kind is drawn and what it is aimed at: what the step waits for. `state` is what all of them write to.
"""
