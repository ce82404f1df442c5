"""What a policy of REGAL can do to a problem: levels of the genes' distributions, choices for the whole graph, and how
its outputs, or chance, become them.

An action is what BRKGA's prior is made of: for each op and device the mean and variance of a Beta, for each op around
what its priority is drawn and how widely; and, for the graph, which order and which sharing of affinities.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.baselines.genetic.brkga import By
from loadmaster.errors import MissingExtra, UnreadableFile
from loadmaster.papers.features import ORDERS, Features

if TYPE_CHECKING:
    from loadmaster.learn.regal2020.networks import Outputs, PolicyNetwork

# Where no reason is given: part of how the weights that are shipped were trained; another value needs new ones.
LEVELS = 16  # of means, variances, widths and biases: what a policy can choose from
MEANS = np.array([1 / 32, *(np.arange(1, LEVELS) / LEVELS)])  # level 8 is one half
VARIANCES = 1.28 ** (np.arange(LEVELS) - 11.0) / 3  # as a share of mean · (1 - mean), its upper limit
WIDTHS = 0.02 * 50 ** (np.arange(LEVELS) / (LEVELS - 1))  # of priorities around an order; the last is the whole range
BIASES = 0.5 + np.arange(LEVELS) / 30  # level 6 is BRKGA's usual 0.7
NOISE = 0.5  # deviation of drawn levels around their targets, in levels
HALF, UNIFORM_VARIANCE = 8, 11  # levels of mean one half and of a variance of 1/3 of its limit: uniform draws

# What is chosen once per graph, and from what.
STRENGTH = (0.0, 0.25, 0.5, 0.75, 1.0)  # how far affinity means go from one half towards the chances
SPREAD = (2, 5, 8, 11)  # level of their variance
ORDER = (*ORDERS[:3], "learned")  # what priorities are drawn around
WIDTH = (3, 6, 9, 12, 15)  # level of how far from it
BIAS = (3, 6, 9, 12)  # level of the elite bias
BLOCKS: tuple[tuple[By, int], ...] = (  # what shares affinities: blocks of the mirrored order, or heavy tensors
    ("op", 0),
    ("mirror", 128),
    ("mirror", 32),
    ("mirror", 8),
    ("edges", 192),
    ("edges", 64),
    ("edges", 24),
)
SENDS = (False, True)  # genes for sends
CHOICES = tuple(map(len, (STRENGTH, SPREAD, ORDER, WIDTH, BIAS, BLOCKS, SENDS)))
STANDARD = (0, 3, 0, 4, 1, 0, 1)  # the choices that make standard BRKGA
FIRST = (2, 2, 3, 2, 1, 1, 0)  # the choices that training starts around
NETWORKS = ("graph", "sequence", "both")


class RegalAction(NamedTuple):
    """What the policy does to one problem: levels, and the choices for the whole graph.

    Attributes:
        mean: [ops * devices] level of the affinity's mean.
        variance: [ops * devices] level of its variance.
        width: [ops] level of the priority's width.
        bias: [ops] level of the elite bias.
        chance: [ops * devices] log-probability of each device.
        place: [ops] learned order.
    """

    choices: NDArray[np.int64]  # [choices]
    mean: NDArray[np.uint8]  # [ops * devices]
    variance: NDArray[np.uint8]  # [ops * devices]
    width: NDArray[np.uint8]  # [ops]
    bias: NDArray[np.uint8]  # [ops]
    chance: NDArray[np.float32]  # [ops * devices]
    place: NDArray[np.float32]  # [ops]


def replace_blocks(action: RegalAction, by: str, blocks: int) -> RegalAction:
    """The action with affinities by op, or by the number of blocks nearest to the one asked for."""
    if by == "policy":
        return action
    choices = action.choices.copy()
    kept = [index for index, (kind, _) in enumerate(BLOCKS) if kind == by]
    choices[5] = min(kept, key=lambda index: abs(np.log((BLOCKS[index][1] or 1) / blocks)))
    return action._replace(choices=choices)


def random_action(features: Features, rng: np.random.Generator) -> RegalAction:
    """Every level and every choice at random: what the policy has to beat."""
    pairs, ops = features.num_ops * features.num_devices, features.num_ops
    return RegalAction(
        choices=np.array([rng.integers(size) for size in CHOICES]),
        mean=rng.integers(LEVELS, size=pairs).astype(np.uint8),
        variance=rng.integers(LEVELS, size=pairs).astype(np.uint8),
        width=rng.integers(LEVELS, size=ops).astype(np.uint8),
        bias=rng.integers(LEVELS, size=ops).astype(np.uint8),
        chance=rng.random(pairs).astype(np.float32),
        place=rng.random(ops).astype(np.float32),
    )


def constant_action(features: Features, choices: tuple[int, ...]) -> RegalAction:
    """The same for all ops: no preference for a device, priorities around the order that `choices` names."""
    pairs, ops = features.num_ops * features.num_devices, features.num_ops
    return RegalAction(
        choices=np.array(choices),
        mean=np.full(pairs, HALF, np.uint8),
        variance=np.full(pairs, SPREAD[choices[1]], np.uint8),
        width=np.full(ops, WIDTH[choices[3]], np.uint8),
        bias=np.full(ops, BIAS[choices[4]], np.uint8),
        chance=np.zeros(pairs, np.float32),
        place=features.orders[:, 0],
    )


def best_action(features: Features, network: PolicyNetwork, choices: tuple[int, ...] | None = None) -> RegalAction:
    """The likeliest action of the network; with the given choices, if any."""
    import torch

    from loadmaster.learn.regal2020.networks import batch_of

    with torch.no_grad():
        outputs = network(batch_of([features]))
    chosen = np.array(choices) if choices else likeliest_choices(outputs.choices[0].cpu().numpy())
    return action_of(outputs, features, chosen, None)


def likeliest_choices(logits: NDArray[np.floating]) -> NDArray[np.int64]:
    edges = np.cumsum(CHOICES)[:-1]
    return np.array([int(part.argmax()) for part in np.split(logits, edges)])


def action_of(
    outputs: Outputs, features: Features, choices: NDArray[np.int64], rng: np.random.Generator | None
) -> RegalAction:
    """The levels nearest to their targets, or drawn around them, of a batch with one problem."""
    chance = outputs.chance.cpu().numpy()
    shift = outputs.shift.cpu().numpy()
    targets = level_targets(chance, shift, choices, features.num_devices)
    mean, variance, width, bias = (levels_near(target, rng) for target in targets)
    return RegalAction(choices, mean, variance, width, bias, chance, outputs.place.cpu().numpy())


def level_targets(
    chance: NDArray[np.floating], shift: NDArray[np.floating], choices: NDArray[np.int64], devices: int
) -> tuple[NDArray[np.floating], ...]:
    """Where the levels lie, as real numbers: of means and variances [pairs], of widths and biases [ops].

    The paper's two devices have chances p and 1 - p. With more, the even chance 1/devices has mean one half.
    """
    even = 1 / devices
    chances = np.exp(chance.astype(np.float64))
    centred = np.where(chances >= even, 0.5 + 0.5 * (chances - even) / max(1e-9, 1 - even), 0.5 * chances / even)
    mean = (0.5 + (centred - 0.5) * STRENGTH[choices[0]]) * LEVELS
    shift = shift.astype(np.float64)
    variance = SPREAD[choices[1]] + np.repeat(shift[:, 1], devices)
    return mean, variance, WIDTH[choices[3]] + shift[:, 0], BIAS[choices[4]] + shift[:, 2]


def levels_near(target: NDArray[np.floating], rng: np.random.Generator | None) -> NDArray[np.uint8]:
    """The nearest levels, or drawn ones around the target."""
    noise = 0.0 if rng is None else NOISE * rng.standard_normal(len(target))
    return np.clip(np.round(target + noise), 0, LEVELS - 1).astype(np.uint8)


@lru_cache(maxsize=4)
def load_policy(checkpoint: str) -> tuple[PolicyNetwork, dict[str, Any]]:
    """The network of a checkpoint, and what its file says of itself."""
    path = weights_path(checkpoint)
    try:
        from loadmaster.learn.regal2020.networks import PolicyNetwork
        from loadmaster.papers.weights import network_of, read_tensors
    except ImportError as error:
        raise MissingExtra.of(str(error.name or "torch"), "torch", "a learned policy") from error
    fix = "train it again with this version: loadmaster train regal"
    known, tensors = read_tensors(path, "policy", fix)
    weights = {n.removeprefix("network."): tensor for n, tensor in tensors.items() if n.startswith("network.")}
    if (
        known.get("choices") != list(CHOICES)
        or not weights
        or known.get("network") not in ("graph", "sequence", "both")
    ):
        raise UnreadableFile(f"'{path}' holds no policy that this version can run", "", fix)
    network = network_of(lambda: PolicyNetwork(CHOICES, known["network"]), weights, path, fix)
    return network.eval(), known


def untrained_policy(network: str, seed: int) -> tuple[PolicyNetwork, dict[str, Any]]:
    """The network as it is before it learns, with weights that the seed draws: what training has to beat."""
    try:
        import torch

        from loadmaster.learn.regal2020.networks import PolicyNetwork
    except ImportError as error:
        raise MissingExtra.of(str(error.name or "torch"), "torch", "a learned policy") from error
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = PolicyNetwork(CHOICES, "sequence" if network == "sequence" else "graph")
    made.lean(FIRST)
    return made.eval(), {"constant": list(FIRST)}


def weights_path(checkpoint: str) -> Path:
    if checkpoint.endswith(".safetensors"):
        path = Path(checkpoint)
    else:
        path = Path(str(resources.files("loadmaster.learn").joinpath("weights", f"{checkpoint}.safetensors")))
    if not path.is_file():
        fix = "give checkpoint=FILE.safetensors, or train one: loadmaster train regal --corpus FILE --out DIR"
        raise UnreadableFile(
            f"there are no trained weights '{checkpoint}'", str(path) if "/" in checkpoint else "", fix
        )
    return path
