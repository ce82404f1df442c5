"""Torch modules as graphs: one step is traced and kept op by op."""
