"""Device Placement Optimization with Reinforcement Learning: Mirhoseini et al. 2017, arXiv 1706.04972.

A recurrent network reads the groups of a graph in topological order; a second one, with attention, gives each group a
device and is fed the device before. It learns on the one graph at hand, from nothing, by the step times of the
placements it draws. Read from the top: groups (section 3.3), features and network (3.2), objective and training (3.1).

Differs from the paper (docs/papers/mirhoseini2017.md has the runs): at most 64 groups, not 83 to 280, since at 1,000
evaluations more are worse (Inception-V3 141.7 against 138.7 ms, RNNLM 137.8 against 136.1, seed 0). The decoder also
reads the encoder's state of the group it places, within noise (aligned=no). Attention is by dot product, for speed; one
controller, since a simulator needs no crew of them: effects not measured. Sizes and rates are ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from loadmaster.errors import InvalidSetting
from loadmaster.graph.columns import Ints
from loadmaster.papers.adam import Adam
from loadmaster.papers.controls import Constant, masked, picked
from loadmaster.papers.environment import Simulated, reward
from loadmaster.papers.grouped import able_groups, cost_columns, published_vectors
from loadmaster.papers.weights import seeded
from loadmaster.passes.groups import group_ops
from loadmaster.problem import Problem
from loadmaster.search import Search

if TYPE_CHECKING:
    from loadmaster.papers.methods import Rnn

MOST_GROUPS = 2_000  # the decoder takes a step for each
BASELINE = 0.9  # what the moving average keeps of itself in a step
CLIP = 1.0  # norm of the gradient
ONLY_VALID = 5_000  # placements after which those that failed no longer update (section 3.1)

# ---------------------------------------------------------------- groups: section 3.3


def colocation_groups(problem: Problem, by: str, most: int) -> Ints:
    """[ops] the framework's colocation groups, and an op whose only reader is Y joins Y."""
    label = group_ops(problem, most, by)  # type: ignore[arg-type]
    count = int(label.max()) + 1
    if count > MOST_GROUPS:
        what = f"by={by} makes {count} groups of '{problem.graph.name}'"
        raise InvalidSetting(what, "rnn", f"at most {MOST_GROUPS} can be placed one by one: use another grouping")
    return label


# ---------------------------------------------------------------- features: section 3.2, "embeddings"


def features_of(problem: Problem, label: Ints, costs: bool) -> Tensor:
    """[groups, width] op kinds, output shapes, adjacency; with `costs` also time, memory and links."""
    columns = [published_vectors(problem, label), *([cost_columns(problem, label)] if costs else [])]
    return torch.from_numpy(np.concatenate(columns, axis=1).astype(np.float32))


# ---------------------------------------------------------------- network: section 3.2, figure 2


class Placer(nn.Module):
    """Sequence to sequence with attention. HDP 2018 has the same placer, with an encoder that reads both ways."""

    def __init__(
        self,
        width: int,
        devices: int,
        hidden: int,
        both_ways: bool = False,
        attention: bool = True,
        feed: bool = True,
        aligned: bool = True,
        tanh: float = 0.0,
    ) -> None:
        super().__init__()
        self.hidden, self.devices, self.tanh = hidden, devices, tanh
        self.attention, self.feed, self.aligned = attention, feed, aligned
        self.enter = nn.Linear(width, hidden)
        self.encoder = nn.LSTM(hidden, hidden // (1 + both_ways), batch_first=True, bidirectional=both_ways)
        self.before = nn.Embedding(devices + 1, hidden)  # of the device before; the last row: there is none yet
        self.decoder = nn.LSTM(2 * hidden, hidden, batch_first=True)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.head = nn.Linear(2 * hidden, devices)
        nn.init.zeros_(self.head.weight)  # the untrained placer prefers no device
        nn.init.zeros_(self.head.bias)

    def encode(self, vectors: Tensor) -> Tensor:
        """[samples, groups, hidden] of vectors [samples, groups, width]."""
        encoded: Tensor = self.encoder(self.enter(vectors))[0]
        return encoded

    def decode(
        self, encoded: Tensor, here: slice, last: Tensor, state: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """([samples, steps, devices] scores of the groups `here`, decoder's state) after the devices `last`."""
        fed = self.before(last if self.feed else torch.full_like(last, self.devices))
        own = encoded[:, here] if self.aligned else torch.zeros_like(encoded[:, here])
        out, state = self.decoder(torch.cat([own.expand(len(last), -1, -1), fed], dim=2), state)
        look = (self.query(out) @ encoded.transpose(1, 2) * self.hidden**-0.5).softmax(dim=2)
        seen = look @ encoded if self.attention else torch.zeros_like(out)
        scores = self.head(torch.cat([out, seen], dim=2))
        return self.tanh * torch.tanh(scores) if self.tanh else scores, state

    @torch.no_grad()
    def draw(self, vectors: Tensor, able: Tensor, gumbel: Tensor, shift: Tensor | float = 0.0) -> Tensor:
        """[samples, groups] devices, one group after the other; with noise [samples, groups, devices] by Gumbel the
        largest is a draw from the softmax. `shift` [groups, devices] is added to the scores."""
        encoded, state = self.encode(vectors), None
        shift = torch.as_tensor(shift).expand(gumbel.shape[1:])
        last = torch.full((len(gumbel), 1), self.devices)
        chosen = []
        for group in range(gumbel.shape[1]):
            scores, state = self.decode(encoded, slice(group, group + 1), last, state)
            chances = masked(scores[:, 0] + shift[group], able[..., group, :])
            last = (chances + gumbel[:, group]).argmax(dim=1, keepdim=True)
            chosen.append(last)
        return torch.cat(chosen, dim=1)

    def log_chances(self, vectors: Tensor, able: Tensor, device: Tensor, shift: Tensor | float = 0.0) -> Tensor:
        """[samples, groups, devices] of all devices along placements that were drawn."""
        first = torch.full((len(device), 1), self.devices)
        last = torch.cat([first, device[:, :-1]], dim=1)
        return masked(self.decode(self.encode(vectors), slice(None), last, None)[0] + shift, able)


class RnnPolicy(nn.Module):
    """The placer over the groups of one graph."""

    def __init__(self, vectors: Tensor, able: Tensor, rnn: Rnn) -> None:
        super().__init__()
        self.vectors, self.able = vectors[None], able
        parts = {"attention": rnn.attention, "feed": rnn.feed, "aligned": rnn.aligned}
        self.placer = Placer(vectors.shape[1], able.shape[1], rnn.hidden, **parts)

    def draw(self, noise: Tensor) -> Tensor:
        return self.placer.draw(self.vectors, self.able, noise)

    def log_chances(self, device: Tensor) -> Tensor:
        return self.placer.log_chances(self.vectors, self.able, device)


def policy_of(problem: Problem, label: Ints, rnn: Rnn, seed: int) -> RnnPolicy | Constant:
    """The network as the seed makes it, or a control in its place."""
    able = torch.from_numpy(able_groups(problem, label))
    if rnn.control != "none":
        return Constant(able, learns=rnn.control == "constant")
    with seeded(seed):
        return RnnPolicy(features_of(problem, label, rnn.features == "costs"), able, rnn)


# ---------------------------------------------------------------- objective and training: section 3.1


def learn(rnn: Rnn, search: Search) -> tuple[Any, Ints]:
    """REINFORCE until the budget is spent; the search keeps the best placement that was measured. (policy, groups).

    Equation 2: the gradient of J is the mean over K placements P of (sqrt(time of P) - B) · gradient of log p(P).
    """
    label = colocation_groups(search.problem, rnn.by, rnn.groups)
    environment = Simulated(search, label)
    policy = policy_of(search.problem, label, rnn, search.seed)
    adam = Adam([each for each in policy.parameters() if each.requires_grad], rnn.rate)
    step, baseline = 0, 0.0
    shape = (rnn.samples, environment.num_groups, search.problem.num_devices)
    while environment.measurements_left:
        rng = np.random.default_rng([search.seed, 2, step])
        device = policy.draw(torch.from_numpy(rng.gumbel(size=shape).astype(np.float32)))
        measured = environment.measure(device.numpy())
        gained = reward(measured, environment.unit_ns)  # minus sqrt(time); a large constant where it failed
        baseline = float(gained.mean()) if step == 0 else baseline
        advantage = gained - baseline
        if step * rnn.samples > ONLY_VALID:
            advantage[~measured.valid] = 0.0
        baseline = BASELINE * baseline + (1 - BASELINE) * float(gained.mean())
        follow(adam, advantage, picked(policy.log_chances(device), device))
        step += 1
    return policy, label


def follow(adam: Adam, advantage: NDArray[np.float64], log_prob: Tensor) -> None:
    """One step of Adam along the policy gradient, its norm clipped."""
    if not adam.parameters or not adam.rate:
        return  # a control
    adam.descend(-(torch.from_numpy(advantage.astype(np.float32)) * log_prob).mean(), CLIP)
