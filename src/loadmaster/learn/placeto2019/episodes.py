"""Placeto's episodes: every group is visited once and given a device; what each choice changed is its reward.

No choice depends on a reward, so many episodes are played side by side first, and all placements they came through are
measured at once afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loadmaster.graph.columns import Ints, ints
from loadmaster.learn.placeto2019.board import ANCESTORS, UNRELATED, Board, squeezed
from loadmaster.learn.placeto2019.network import PAIRS_WIDTH, BoardTensors, Once, PlacetoNetwork, changing
from loadmaster.papers.environment import PENALTY, Environment, Measurements

Floats = NDArray[np.float64]

OVER_COST = 4.0  # of all devices' memory in bytes over the limit; the most that excess can cost, too
FAILED_COST = 1.0  # of a placement that failed, beyond what the last one that ran cost
SMALL_SPREAD = 0.01  # a floor under the deviation of returns: where all episodes end alike, their order is noise
AT_ONCE = 1 << 24  # numbers in one tensor of embeddings, when groups are embedded anew for each step


@dataclass(frozen=True, eq=False)
class Episodes:
    """A few episodes over one board, from one start in one order.

    Attributes:
        order: [steps] the group of each step.
        actions: [episodes, steps] the device chosen.
        pairs: [episodes, steps, devices, PAIRS_WIDTH] what was seen.
    """

    order: Ints  # [steps]
    start: Ints  # [groups]
    actions: Ints  # [episodes, steps]
    pairs: NDArray[np.float32]  # [episodes, steps, devices, PAIRS_WIDTH]

    @property
    def last(self) -> Ints:
        """[episodes, groups] the placements they end in."""
        return ints(self.actions[:, np.argsort(self.order)])

    def passed(self, steps: Ints | None = None) -> Ints:
        """[episodes, steps + 1, groups] the placements they came through: the start and what each step made of it; or
        only those after so many `steps`."""
        place = np.argsort(self.order)
        after = np.arange(len(self.order) + 1) if steps is None else steps
        return ints(np.where(place[None] < after[:, None], self.last[:, None], self.start))


class Walk:
    """What episodes see as they go: data to be moved, loads, and when the group could start on each device.

    The start time is an estimate that counts groups already visited only: one after the other on a device, as HEFT
    would have it. Walking backwards, time runs backwards too.
    """

    def __init__(self, board: Board, start: Ints, count: int, backwards: bool) -> None:
        self.board, self.count = board, count
        devices = board.num_devices
        self.place = np.tile(start, (count, 1))  # [episodes, groups]
        self.hot = np.eye(devices, dtype=np.float32)[self.place]  # [episodes, groups, devices]
        self.done = np.zeros(board.num_groups, bool)
        self.load = np.tile(self._by_device(board.time[np.arange(len(start)), start], start), (count, 1))
        self.done_load, self.done_held, self.free_at = (np.zeros((count, devices)) for _ in range(3))
        self.held = np.tile(self._by_device(board.need, start), (count, 1))
        self.end = np.zeros((count, board.num_groups))
        self.fair = max(1e-9, float(board.time.min(axis=1).sum()) / devices)
        self.waits = board.edges.T if not backwards else board.edges  # row g: whom g waits for
        self.finish = np.zeros((count, devices))

    def _by_device(self, values: Floats, device: Ints) -> Floats:
        return np.asarray(np.bincount(device, values, self.board.num_devices))

    def look(self, group: int, progress: float) -> NDArray[np.float32]:
        """[episodes, devices, PAIRS_WIDTH] the group on each device."""
        board, shape = self.board, (self.count, self.board.num_devices)
        own = board.time[group]
        coming, arrive = self._sends(board.wire[:, group], group)
        leaving, _ = self._sends(board.wire[group], group)
        begin = np.maximum(self.free_at, arrive)
        self.finish = begin + own
        shares = self._neighbours(group)
        away = self.hot[:, group]
        columns = [
            *(squeezed(part) for part in (*coming, *leaving)),
            *shares,
            self.done_load / self.fair,
            (self.load - away * own + own) / self.fair,
            *self._loads_of(group),
            squeezed(_above(self.finish)),
            _above(self.finish) / self.fair,
            squeezed(_above(begin)),
            _above(self.free_at) / self.fair,
            begin / self.fair,
            np.broadcast_to(squeezed(own), shape),
            np.broadcast_to(np.log2((own + 1e-9) / (own.min() + 1e-9)) / 4, shape),
            away,
            (self.done_held + board.need[group]) / board.memory,
            (self.held + (1 - away) * board.need[group]) / board.memory,
            np.full(shape, progress),
        ]
        assert len(columns) == PAIRS_WIDTH
        return np.asarray(np.clip(np.stack(columns, axis=2), -4, 4), np.float32)

    def _sends(self, wire: Floats, group: int) -> tuple[list[Floats], Floats]:
        """([episodes, devices] sends of done and other neighbours if the group were there, when the last one is in)."""
        shape = (self.count, self.board.num_devices)
        near = np.flatnonzero(wire.any(axis=1) | self.waits[group])
        if not len(near):
            return [np.zeros(shape), np.zeros(shape)], np.zeros(shape)
        link = self.board.link[self.place[:, near]]  # [episodes, near, devices]
        cost = wire[near][np.arange(len(near))[None, :, None], link]
        done = self.done[near]
        waited = done & self.waits[group, near]
        arrive = (self.end[:, near, None] + cost)[:, waited].max(axis=1, initial=0.0)
        return [cost[:, done].sum(axis=1), cost[:, ~done].sum(axis=1)], arrive

    def _neighbours(self, group: int) -> list[Floats]:
        """The part of what the group exchanges that is with groups on each device: with done ones, with all."""
        tie = self.board.tie[group] + self.board.tie[:, group]
        tie = tie / max(1e-9, tie.sum())
        near = np.flatnonzero(tie)
        hot = self.hot[:, near]
        return [np.einsum("n,end->ed", tie[near] * self.done[near], hot), np.einsum("n,end->ed", tie[near], hot)]

    def _loads_of(self, group: int) -> list[Floats]:
        """Time of done groups on each device that are unrelated to it, and of its ancestors."""
        best = self.board.time.min(axis=1) * self.done / self.fair
        rows = self.board.related[[UNRELATED, ANCESTORS], group] * best
        loads = np.tensordot(rows.astype(np.float32), self.hot, axes=([1], [1]))
        return [loads[0], loads[1]]

    def put(self, group: int, device: Ints) -> None:
        """Places the group in each episode."""
        board, all_of = self.board, np.arange(self.count)
        before = self.place[:, group].copy()
        self.load[all_of, before] -= board.time[group, before]
        self.held[all_of, before] -= board.need[group]
        self.load[all_of, device] += board.time[group, device]
        self.held[all_of, device] += board.need[group]
        self.done_load[all_of, device] += board.time[group, device]
        self.done_held[all_of, device] += board.need[group]
        self.end[:, group] = self.free_at[all_of, device] = self.finish[all_of, device]
        self.place[:, group] = device
        self.hot[:, group] = 0
        self.hot[all_of, group, device] = 1
        self.done[group] = True


def _above(values: Floats) -> Floats:
    return np.asarray(values - values.min(axis=1, keepdims=True))


@torch.no_grad()
def play(
    network: PlacetoNetwork,
    board: Board,
    board_tensors: BoardTensors,
    start: Ints,
    order: Ints,
    once: Once,
    count: int = 1,
    rng: np.random.Generator | None = None,
    backwards: bool = False,
) -> Episodes:
    """Episodes side by side, devices drawn from the network's chances; the likeliest ones where there is no rng."""
    steps = len(order)
    walk = Walk(board, start, count, backwards)
    actions, pairs = np.zeros((count, steps), np.int64), []
    draws = None if rng is None else rng.random((steps, count))
    eye = _Eye(network, board_tensors, start, order, once)
    for step, group in enumerate(order.tolist()):
        seen = walk.look(group, step / steps)
        chances = eye.chances(step, torch.from_numpy(walk.hot), torch.from_numpy(seen)).numpy()
        actions[:, step] = chances.argmax(axis=1) if draws is None else _drawn(chances, draws[step])
        walk.put(group, actions[:, step])
        pairs.append(seen)
    return Episodes(order, start, ints(actions), np.stack(pairs, axis=1))


def _drawn(chances: NDArray[np.float32], draw: Floats) -> Ints:
    """A device for each row by its chances; never one with none."""
    edges = np.cumsum(chances.astype(np.float64), axis=1)
    picked = (edges < (draw * edges[:, -1])[:, None]).sum(axis=1)
    return ints(np.where(np.take_along_axis(chances, picked[:, None], 1)[:, 0] > 0, picked, chances.argmax(axis=1)))


class _Eye:
    """The network over the steps of episodes that are being played."""

    def __init__(
        self, network: PlacetoNetwork, board_tensors: BoardTensors, start: Ints, order: Ints, once: Once
    ) -> None:
        self.network, self.board_tensors, self.once = network, board_tensors, once
        self.order = torch.from_numpy(order.copy())
        self.done = _done_before(self.order)
        if once == "episode":
            self.state = _state_at_start(network, board_tensors, start)
            self.pool = network.pooled(board_tensors, self.state, self.order, self.done)

    def chances(self, step: int, place: Tensor, pairs: Tensor) -> Tensor:
        """[episodes, devices]"""
        one = slice(step, step + 1)
        group, able = self.order[one], self.board_tensors.able[self.order[one]]
        if self.once == "episode":
            state, pool = self.state[group], self.pool[one]
        else:
            current = torch.nn.functional.one_hot(group, len(self.order)).float()
            change = changing(self.board_tensors, place[:, None], self.done[one], current)
            embedded = self.network.embed(self.board_tensors, change)
            state = embedded[:, torch.zeros_like(group), group]
            pool = self.network.pooled(self.board_tensors, embedded, group, self.done[one])
        scores = self.network.scores(self.board_tensors, state, pool, place[:, None], pairs[:, None], able)
        return scores[:, 0].softmax(dim=-1)


def _done_before(order: Tensor) -> Tensor:
    """[steps, groups] 1 where the group was visited before the step."""
    place = torch.argsort(order)
    return (place[None] < torch.arange(len(order), device=order.device)[:, None]).float()


def _state_at_start(network: PlacetoNetwork, board_tensors: BoardTensors, start: Ints) -> Tensor:
    hot = torch.nn.functional.one_hot(torch.from_numpy(start.copy()), board_tensors.num_devices).float()
    none = torch.zeros(len(start), device=board_tensors.groups.device)
    return network.embed(board_tensors, changing(board_tensors, hot.to(board_tensors.groups.device), none, none))


def log_chances(
    network: PlacetoNetwork, board_tensors: BoardTensors, episodes: Episodes, once: Once
) -> Iterator[tuple[slice, Tensor]]:
    """[episodes, some steps, devices] the log-chances of all devices, a few steps at a time where groups are embedded
    anew for each: every part can be learned from before the next is made."""
    device = board_tensors.groups.device
    order = torch.from_numpy(episodes.order.copy()).to(device)
    done = _done_before(order)
    passed = torch.from_numpy(episodes.passed().copy()).to(device)
    pairs = torch.from_numpy(episodes.pairs).to(device)
    steps, many = len(order), len(episodes.actions)
    width = network.pool.in_features
    size = steps if once == "episode" else max(1, AT_ONCE // (many * len(episodes.start) * width))
    for low in range(0, steps, size):
        some = slice(low, min(steps, low + size))
        place = torch.nn.functional.one_hot(passed[:, some.start : some.stop], board_tensors.num_devices).float()
        group = order[some]
        if once == "episode":
            state = _state_at_start(network, board_tensors, episodes.start)
            own = state[group]
        else:
            current = torch.nn.functional.one_hot(group, len(episodes.start)).float()
            state = network.embed(board_tensors, changing(board_tensors, place, done[some], current))
            own = state[:, torch.arange(len(group), device=device), group]
        pool = network.pooled(board_tensors, state, group, done[some])
        scores = network.scores(board_tensors, own, pool, place, pairs[:, some], board_tensors.able[group])
        yield some, scores.log_softmax(dim=-1)


def costs(environment: Environment, episodes: Episodes, every: int = 1) -> Floats | None:
    """[episodes, steps + 1] the cost of the start and after each step, measured every so many steps (between, it is as
    after the last one measured); none where the budget ends before all are measured. Equal placements are measured
    once."""
    steps = len(episodes.order)
    marks = np.unique(np.append(np.arange(0, steps, max(1, every)), steps))
    passed = episodes.passed(ints(marks))
    flat = np.ascontiguousarray(passed.reshape(-1, passed.shape[2]), np.int16)
    rows = flat.view(np.dtype((np.void, flat.itemsize * flat.shape[1])))[:, 0]
    _, first, which = np.unique(rows, return_index=True, return_inverse=True)
    if environment.measurements_left < len(first):
        environment.measure(passed[:, -1][: environment.measurements_left])  # what is left goes to where episodes ended
        return None
    measured = environment.measure(flat[first].astype(np.int64))
    cost = cost_of(environment, measured)[which.reshape(-1)].reshape(passed.shape[:2])
    cost = _after_failures(cost)
    at = np.searchsorted(marks, np.arange(steps + 1), side="right") - 1
    return np.asarray(cost[:, at])


def cost_of(environment: Environment, measured: Measurements) -> Floats:
    """[n] the root of the step time in the environment's units, and what the bytes over the limits cost; nan: failed.

    Each is capped. The paper counts 2 per GB over the limit; here it is by the share of all memory.
    """
    time = np.minimum(np.sqrt(measured.step_ns / environment.unit_ns), PENALTY)
    memory = max(1.0, float(environment.problem.memory_bytes.sum()))
    over = np.minimum(OVER_COST, OVER_COST * measured.over_bytes / memory)
    return np.where(measured.failed, np.nan, time + over)


def _after_failures(cost: Floats) -> Floats:
    """The costs with each failure as the last placement that ran, and a penalty; of a start that failed, the mean."""
    failed = np.isnan(cost)
    if not failed.any():
        return cost
    ran = np.where(failed[:, 0], PENALTY if failed.all() else np.nanmean(cost), cost[:, 0])
    filled = cost.copy()
    filled[:, 0] = ran
    for step in range(1, cost.shape[1]):
        filled[:, step] = np.where(failed[:, step], ran + FAILED_COST, cost[:, step])
        ran = np.where(failed[:, step], ran, cost[:, step])
    return np.minimum(filled, PENALTY + OVER_COST)


def advantages(cost: Floats, discount: float = 1.0) -> Floats:
    """[episodes, steps] returns over the mean of that step's over all episodes (the per-step baseline), as deviations.

    The reward of a step is the cost before it less the cost after; without discount they add up to start - end.
    """
    rewards = cost[:, :-1] - cost[:, 1:]
    returns = np.zeros_like(rewards)
    ahead = np.zeros(len(cost))
    for step in range(rewards.shape[1] - 1, -1, -1):
        ahead = rewards[:, step] + discount * ahead
        returns[:, step] = ahead
    over = returns - returns.mean(axis=0, keepdims=True)
    return np.asarray(np.clip(over / (over.std() + SMALL_SPREAD), -4, 4))


def reinforce(
    network: PlacetoNetwork,
    board_tensors: BoardTensors,
    episodes: Episodes,
    advantage: Floats,
    once: Once,
    entropy: float,
) -> tuple[float, float]:
    """Adds the gradient of REINFORCE with an entropy bonus to the network's; (loss, mean entropy)."""
    device = board_tensors.groups.device
    chosen = torch.from_numpy(episodes.actions.copy()).to(device)
    weight = torch.from_numpy(advantage.astype(np.float32)).to(device)
    total, spread = 0.0, 0.0
    for some, chances in log_chances(network, board_tensors, episodes, once):
        log_chance = chances.gather(2, chosen[:, some, None])[..., 0]
        unsure = -(chances.exp() * chances.clamp(min=-50)).sum(dim=-1)
        loss = (-(log_chance * weight[:, some]).sum() - entropy * unsure.sum()) / chosen.numel()
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
        spread += float(unsure.detach().sum()) / chosen.numel()
    return total, spread
