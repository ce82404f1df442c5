"""Moves of annealing: each file changes one kind of decision of a chain (`apply`) and takes it back (`undo`)."""
