"""Training of the learned list scheduler (`loadmaster.optimizers.policy`) by evolution strategies.

`command` is the run and its files, `examples` the problems, `training` the ascent.
"""
