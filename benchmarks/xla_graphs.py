"""XLA programs of training steps, as a test set for REGAL: python benchmarks/xla_graphs.py OUT.jsonl.xz (needs jax).

Networks of jax alone and of its example library, each with its gradients and an SGD update, lowered to StableHLO for
abstract inputs: nothing is compiled and no memory is taken. Then: loadmaster lab bench regal --corpus OUT.jsonl.xz.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
from jax.example_libraries import stax

from loadmaster.files import save_graphs
from loadmaster.graph import Graph
from loadmaster.importers import load

IMAGE = (32, 64, 64, 3)
Network = tuple[Callable[..., Any], Callable[..., Any]]  # (init, apply), as stax has it


def residual(main: tuple[Network, ...], shortcut: Network) -> Network:
    return stax.serial(stax.FanOut(2), stax.parallel(stax.serial(*main), shortcut), stax.FanInSum, stax.Relu)


def bottleneck(channels: int, stride: int = 1) -> Network:
    main = (
        *(stax.Conv(channels, (1, 1), (stride, stride)), stax.BatchNorm(), stax.Relu),
        *(stax.Conv(channels, (3, 3), padding="SAME"), stax.BatchNorm(), stax.Relu),
        *(stax.Conv(4 * channels, (1, 1)), stax.BatchNorm()),
    )
    return residual(main, stax.serial(stax.Conv(4 * channels, (1, 1), (stride, stride)), stax.BatchNorm()))


def resnet(blocks: tuple[int, ...]) -> Network:
    stages = [bottleneck(64 * 2**i, 2 if i and not n else 1) for i, count in enumerate(blocks) for n in range(count)]
    stem = (stax.Conv(64, (7, 7), (2, 2), "SAME"), stax.BatchNorm(), stax.Relu)
    return stax.serial(*stem, *stages, stax.Flatten, stax.Dense(1000), stax.LogSoftmax)


def inception(blocks: int) -> Network:
    def branch(channels: int, size: int) -> Network:
        return stax.serial(stax.Conv(channels, (size, size), padding="SAME"), stax.BatchNorm(), stax.Relu)

    block = [
        layer
        for _ in range(blocks)
        for layer in (
            stax.FanOut(4),
            stax.parallel(branch(32, 1), branch(48, 3), branch(24, 5), stax.serial(branch(24, 1), branch(32, 3))),
            stax.FanInConcat(),
        )
    ]
    return stax.serial(stax.Conv(32, (3, 3), (2, 2)), *block, stax.Flatten, stax.Dense(100), stax.LogSoftmax)


def perceptron(layers: int) -> Network:
    hidden = [layer for _ in range(layers) for layer in (stax.Dense(2048), stax.Relu)]
    return stax.serial(stax.Flatten, *hidden, stax.Dense(100), stax.LogSoftmax)


def transformer(layers: int, width: int = 512, heads: int = 8) -> Network:
    shapes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}

    def init(key: Any, shape: Any) -> Any:
        return shape, [{name: jnp.zeros(size) for name, size in shapes.items()} for _ in range(layers)]

    def norm(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)

    def apply(weights: Any, x: Any, **_: Any) -> Any:
        for layer in weights:
            parts = jnp.split(norm(x) @ layer["qkv"], 3, -1)
            q, k, v = (part.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2) for part in parts)
            mixed = jax.nn.softmax(q @ k.swapaxes(2, 3) / (width // heads) ** 0.5) @ v
            x = x + mixed.swapaxes(1, 2).reshape(x.shape) @ layer["out"]
            x = x + jax.nn.gelu(norm(x) @ layer["up"]) @ layer["down"]
        return x

    return init, apply


def recurrent(steps: int, layers: int = 2, width: int = 1024) -> Network:
    """LSTMs, unrolled in time."""

    def init(key: Any, shape: Any) -> Any:
        return shape, [jnp.zeros((2 * width, 4 * width)) for _ in range(layers)]

    def apply(weights: Any, x: Any, **_: Any) -> Any:
        state = [(x[:, 0] * 0, x[:, 0] * 0) for _ in weights]
        for step in range(steps):
            below = x[:, step]
            for at, weight in enumerate(weights):
                gates = jnp.split(jnp.concatenate([below, state[at][0]], -1) @ weight, 4, -1)
                cell = jax.nn.sigmoid(gates[0]) * state[at][1] + jax.nn.sigmoid(gates[1]) * jnp.tanh(gates[2])
                below = jax.nn.sigmoid(gates[3]) * jnp.tanh(cell)
                state[at] = (below, cell)
        return below

    return init, apply


MODELS: dict[str, tuple[Network, tuple[int, ...]]] = {
    "perceptron-8": (perceptron(8), IMAGE),
    "resnet-26": (resnet((2, 2, 2, 2)), IMAGE),
    "resnet-50": (resnet((3, 4, 6, 3)), IMAGE),
    "inception-4": (inception(4), IMAGE),
    "inception-9": (inception(9), IMAGE),
    "transformer-4": (transformer(4), (8, 128, 512)),
    "transformer-12": (transformer(12), (8, 128, 512)),
    "lstm-10": (recurrent(10), (64, 10, 1024)),
    "lstm-30": (recurrent(30), (64, 30, 1024)),
    "lstm-4-layers": (recurrent(12, 4), (64, 12, 1024)),
}


def graphs() -> Iterator[Graph]:
    for name, ((init, apply), shape) in MODELS.items():
        weights = jax.eval_shape(lambda key, init=init, shape=shape: init(key, shape)[1], jax.random.key(0))

        def step(weights: Any, x: Any, apply: Callable[..., Any] = apply) -> Any:
            gradients = jax.grad(lambda each: (apply(each, x) ** 2).mean())(weights)
            return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, weights, gradients)

        with TemporaryDirectory() as folder:
            file = Path(folder) / f"{name}.stablehlo"
            file.write_text(jax.jit(step).lower(weights, jax.ShapeDtypeStruct(shape, jnp.float32)).as_text())
            graph = load(str(file))
        print(f"{name}: {graph.num_ops} ops", flush=True)
        yield graph


if __name__ == "__main__":
    save_graphs(list(graphs()), Path(sys.argv[1]))
