"""What the two recurrent methods share: a sequence-to-sequence placer, REINFORCE on one graph, and how runs are kept.

`inputs` is what placers read, `seq2seq` the network, `reinforce` the learning, `controllers` several of them with
shared parameters; `optimizer` the settings both methods have, `training` and `weights` files of runs outside a search.
"""
