"""Local search and simulated annealing over placement and order.

`anneal` has the two methods, `chains` walks a few chains side by side and says how long and how hot coolings are,
`engine` is the compiled loop: a move is drawn (`choice` which kind, `sets` which ops), applied (`moves`), simulated,
and kept or taken back. `critical` says what the step waits for, which moves are aimed at, `state` is
what all of them write to.
"""
