"""Decisions that a network starts from in tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from loadmaster.learn.go2020.input import GoInput
from loadmaster.learn.go2020.network import GoBatch, LastDecisions


def first_decisions(many: Sequence[GoInput], batch: GoBatch, candidates: Sequence[int]) -> LastDecisions:
    """A candidate by its number, -1: none; ops in the critical-path order."""
    device = torch.zeros_like(batch.time)
    for row, (one, candidate) in enumerate(zip(many, candidates, strict=True)):
        if candidate >= 0:
            shares = torch.from_numpy(one.candidate_shares(candidate))
            device[row, : one.num_groups, : one.num_devices] = shares.to(device.device)
    return LastDecisions(device, torch.zeros_like(batch.size))
