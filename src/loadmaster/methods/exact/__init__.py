"""Proofs for small problems: CP-SAT (`cp_sat`, its model in `cp_model`) and branch and bound (`branching`)."""
