"""XLA programs as graphs: HLO text, HLO protos and StableHLO text, read without jax.

`text`, `proto` and `stablehlo` read a `module`, `cost` counts what each instruction takes, `graph` writes the Graph;
`load` puts them together, for files and for jax functions.
"""
