"""Moves of annealing: each file changes one kind of decision of a chain (`apply`) and takes it back (`undo`).

The contract: `apply` writes to the chain and notes in the scratch space what it overwrote; `undo` restores exactly
that, for a move that was not kept. Drawing which ops a move is about is not theirs (`sets`, `proposals`). To add a
move: a kind in `state`, its weight in `chains`, and its turn in `engine`.
"""
