"""Training of the learned list scheduler (`loadmaster.optimizers.policy`) by evolution strategies."""
