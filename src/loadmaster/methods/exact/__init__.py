"""Proofs for small problems: CP-SAT (`cp_sat`, its model in `cp_model`) and branch and bound (`branching`)."""

MOST_PROVED = 16  # ops, up to which branch and bound ends sooner than CP-SAT
