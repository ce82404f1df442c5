"""Writes afresh what networks say of small problems: python -m tests.golden.networks [SCENE ...]

Weights are waves, made by no generator, so that every layer counts and none is at its first value. Of each answer its
shape and four sums are kept, and compared to a part in a thousand: the last digits of fractions are the machine's.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from loadmaster import price
from loadmaster.graph.columns import ints
from loadmaster.passes.groups import group_ops
from loadmaster.simulator import first_come, simulate
from tests.golden.inputs import few, lopsided, sums_of
from tests.golden.plans import PROBLEMS, layers
from tests.golden.scenes import Scenes, Told

SCENES = Scenes(Path(__file__).parent / "networks.json", digits=6)


def waves(network: Any, loud: float = 0.3) -> Any:
    """The network with weights that no two of are alike."""
    import torch

    torch.set_num_threads(1)
    first = 0
    with torch.no_grad():
        for weight in network.parameters():
            count = weight.numel()
            place = torch.arange(first, first + count, dtype=torch.float64)
            wave = loud * torch.sin(place * 0.7) + 0.1 * torch.cos(place * 0.13)
            weight.copy_(wave.reshape(weight.shape).to(weight.dtype))
            first += count
    return network.eval()


def told(name: str, **tensors: Any) -> Told:
    """Without the scores of what cannot be, beside which the others would not show."""
    parts = {part: tensor.detach().float() for part, tensor in tensors.items()}
    return {f"{name} {part}": sums_of(tensor.masked_fill(tensor < -20, 0.0).numpy()) for part, tensor in parts.items()}


@SCENES
def go() -> Told:
    """Two problems in one batch, of unlike sizes, after decisions of which one was seen in a simulation."""
    from loadmaster.learn.go2020 import network
    from loadmaster.learn.go2020.input import go_input
    from loadmaster.learn.go2020.network import GoNetwork, NetworkShape, decisions_of, go_batch
    from loadmaster.learn.go2020.timeline import seen_of

    odd, small = lopsided(), few()
    many = [go_input(problem, groups, kernels=True) for problem, groups in ((odd, 11), (small, 0))]
    batch = go_batch(many)
    device = [ints(np.arange(one.num_groups) // 3 % one.num_devices) for one in many]
    level = [ints(np.arange(one.num_groups) * 7 % 20) for one in many]
    placed = ints(device[0][many[0].label])
    plan = first_come(odd, placed)
    seen = seen_of(odd, many[0].label, placed, simulate(odd, plan))
    found: Told = {}
    shapes = {
        "plain": {},
        "sums": {"pooling": "sum", "choice": "sage", "layers": 1},
        "alone": {"attention": False, "modulation": False, "heads": 2},
        "all": {"tasks": ("fusion", "placement", "schedule")},
    }
    for name, given in shapes.items():
        net = waves(GoNetwork(NetworkShape(hidden=8, **given)))  # type: ignore[arg-type]
        for segment in (4, 256):
            with mock.patch.object(network, "SEGMENT", segment):
                said = net(batch, decisions_of(batch, device, level, [seen, None]))
                found |= told(f"{name} {segment}", place=said.place, level=said.level, fusion=said.fusion)
                found |= told(f"{name} {segment}", choice=net.choose(batch))
        unseen = decisions_of(batch, device, level)
        found |= told(f"{name} unseen", place=net(batch, unseen).place, levels=unseen.level)
    near, load = network._under(batch, unseen)
    return found | told("under", near=near, load=load)


@SCENES
def placeto() -> Told:
    """Chances along episodes that are given, and of devices as an episode comes to its groups."""
    import torch

    from loadmaster.learn.placeto2019 import episodes
    from loadmaster.learn.placeto2019.board import board_of
    from loadmaster.learn.placeto2019.network import PlacetoNetwork, changing, tensors_of

    problem = lopsided()
    board = board_of(problem, group_ops(problem, 7, "scope"))
    tensors = tensors_of(board)
    groups, start = board.num_groups, ints(np.arange(board.num_groups) % 2)
    found: Told = {}
    for aggregator, embedding in (("messages", "graph"), ("simple", "graph"), ("messages", "partitioner")):
        net = waves(PlacetoNetwork(aggregator, embedding, hidden=6, rounds=3), 0.1)  # type: ignore[arg-type]
        for backwards, once in ((False, "episode"), (True, "step")):
            order = ints(board.order[::-1]) if backwards else board.order
            played = episodes.play(
                net, board, tensors, start, order, once, 3, np.random.default_rng(2), backwards  # type: ignore[arg-type]
            )  # fmt: skip
            name = f"{aggregator} {embedding} {once}"
            found[f"{name} pairs"] = sums_of(played.pairs)
            actions = ints((np.arange(3 * groups).reshape(3, groups) * 5 // 3) % board.num_devices)
            given = episodes.Episodes(order, start, actions, played.pairs)
            for at_once in (1, 1 << 24):
                with mock.patch.object(episodes, "AT_ONCE", at_once):
                    parts = list(episodes.log_chances(net, tensors, given, once))  # type: ignore[arg-type]
                chances = torch.cat([part for _, part in parts], dim=1)
                found |= told(f"{name} {at_once}", chances=chances)
            net.zero_grad()
            advantage = np.sin(np.arange(3 * groups)).reshape(3, groups)
            loss, unsure = episodes.reinforce(net, tensors, given, advantage, once, 0.3)  # type: ignore[arg-type]
            found[f"{name} learned"] = [loss, unsure, float(net.lean.weight.grad.norm())]
            eye = episodes._Eye(net, tensors, start, order, once)  # type: ignore[arg-type]
            place = np.eye(board.num_devices, dtype=np.float32)[given.passed()[:, 2]]
            seen = torch.from_numpy(played.pairs[:, 2])
            found |= told(name, now=eye.chances(2, torch.from_numpy(place), seen))
    hot = torch.from_numpy(np.eye(board.num_devices, dtype=np.float32)[start])
    done = (torch.arange(groups) < 3).float()
    return found | told("changing", all=changing(tensors, hot, done, 1 - done))


@SCENES
def placers() -> Told:
    """The recurrent placer: draws step by step, chances of all steps at once, with and without features of devices."""
    from loadmaster.learn.hdp2018.policy import HdpPolicy, units_of
    from loadmaster.learn.mirhoseini2017.policy import RnnPolicy
    from loadmaster.learn.recurrent.inputs import scene_of

    problem = lopsided()
    label = group_ops(problem, 7, "scope")
    found: Told = {}
    for full in (True, False):
        policy = waves(RnnPolicy(scene_of(problem, label, 9, full), hidden=6))
        drawn = policy.draw(5, np.random.default_rng(3), 0.5)
        likely = policy.likelihood(drawn)
        found[f"rnn {full} drawn"] = sums_of(drawn.placement)
        found |= told(f"rnn {full}", so_far=drawn.choices[1], chance=likely.chance, entropy=likely.entropy)
        found[f"rnn {full} even"] = [likely.even, float(policy.num_choices)]
        logits = policy.placer.logits(policy.scene, *drawn.choices)
        found |= told(f"rnn {full}", logits=logits)
        found[f"rnn {full} greedy"] = sums_of(policy.draw(2, np.random.default_rng(3), 0.5, greedy=True).placement)
    policy = waves(HdpPolicy(units_of(problem, group_ops(problem, 12, "edges")), 4, hidden=6))
    for share in (0.0, 0.05, 0.5, 0.9):
        drawn = policy.draw(5, np.random.default_rng(4), share)
        group, picks, _, noise = drawn.choices
        likely = policy.likelihood(drawn)
        found[f"hdp {share} drawn"] = [*sums_of(drawn.placement), *sums_of(group.numpy()), *sums_of(picks.numpy())]
        found |= told(f"hdp {share}", noise=noise, chance=likely.chance, entropy=likely.entropy)
        found[f"hdp {share} even"] = [likely.even, float(policy.num_choices)]
        scene = policy.scene(group)
        found |= told(f"hdp {share}", vectors=scene.vectors, able=scene.able)
    greedy = policy.draw(2, np.random.default_rng(4), 0.0, greedy=True)
    found["hdp greedy"] = [*sums_of(greedy.placement), *sums_of(greedy.choices[0].numpy())]
    rates = [group["lr"] for group in policy.rates(2.0)]
    return found | {"hdp rates": rates}


@SCENES
def regal() -> Told:
    """All three bodies on two graphs side by side."""
    from loadmaster.learn.features import features_of
    from loadmaster.learn.regal2020.actions import CHOICES, FIRST
    from loadmaster.learn.regal2020.networks import PolicyNetwork, batch_of

    many = [features_of(problem) for problem in (lopsided(), price(layers(2, 3, 1), "2xp100-pcie"), few())]
    found: Told = {}
    for kind in ("graph", "sequence", "both"):
        net = waves(PolicyNetwork(CHOICES, kind, hidden=8, rounds=3))  # type: ignore[arg-type]
        net.lean(FIRST)
        said = net(batch_of(many))
        found |= told(kind, chance=said.chance, place=said.place, shift=said.shift, choices=said.choices)
    return found


@SCENES
def lists() -> Told:
    """Plans of the list scheduler whose choices are a network's: alone, about a plan that is given, and with noise."""
    from loadmaster.optimizers.policy.policy import decoded, net_of, size_of
    from loadmaster.optimizers.policy.proposing import proposals
    from loadmaster.optimizers.policy.views import view_of
    from loadmaster.plans import Plan

    found: Told = {}
    for name, problem in (("lopsided", lopsided()), ("few", few()), ("tight", PROBLEMS["tight"]())):
        view = view_of(problem)
        given = Plan.of(problem, ints(problem.able.argmax(axis=1)[problem.leader]))
        for wave in (0.7, 1.3):
            net = net_of(0.4 * np.sin(wave * np.arange(size_of())))
            for start, noise in ((None, 0.0), (given, 0.0), (given, 0.3)):
                plans = list(decoded(problem, view, net, start, noise=noise, seed=5))
                parts = [sums_of(part) for plan in plans for part in (plan.device, plan.rank)]
                found[f"{name} {wave} {start is None} {noise}"] = [each for part in parts for each in part]
            said = proposals(problem, view, net, given)
            found[f"{name} {wave} said"] = sums_of(np.where(said.place < -1e3, 0.0, said.place))
    return found


if __name__ == "__main__":
    SCENES.write(sys.argv[1:])
