"""Plans that need less memory: orders, ops that run again, tensors that wait on a host.

Two families. On orders: `anneal_order`, with the compiled `order_moves`. On
what a plan adds (rule 15 of the simulator): `recompute` is the method; it works on a `draft`, a plan as kernels in a
row, `dropping` passes over that and does without tensors, each by a choice among making it again (`closures`,
`changes`, `passing`), sending it away and back (`trips`) or having what is there before the step live on a host
(`lodging`); `drafted` makes a plan of it again. `inlining` computes light ops again where they are read, `delaying`
lets results wait, `checkpoints` and `cutting` are what others do, to compare with.
"""
