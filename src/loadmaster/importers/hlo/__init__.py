"""XLA programs as graphs: HLO text, HLO protos and StableHLO text, read without jax."""
