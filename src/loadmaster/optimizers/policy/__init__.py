"""The learned list scheduler: a small network says what each device is worth to the next op.

`views` is what it sees of an op beforehand, `decoding` the compiled list schedule in which it chooses, `policy` the
method with its weights, `proposing` its scores as moves of annealing, `weights` the file they are in.
`learn.scheduling` trains it; planning with it needs no torch.
"""
