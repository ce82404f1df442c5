"""Writes the HLO of six small jax models that the tests read, and what XLA says of each. The tests need no jax:

    python -m venv jaxenv && jaxenv/bin/pip install jax==0.10.2
    jaxenv/bin/python tests/unit/importers/hlo/make_models.py tests/unit/importers/hlo/data

Each is a training step (forward, backward, SGD) compiled for the CPU. `NAME.hlo.xz` is the optimized text, `NAME.pb.xz`
the serialized proto of the same module, `mlp.mlir` the StableHLO before XLA saw it, `costs.json` XLA's own analysis.
"""

import json
import lzma
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax


def dense(params, x):
    return x @ params["w"] + params["b"]


def weights(key, rows, columns):
    return {"w": jax.random.normal(key, (rows, columns)) / rows**0.5, "b": jnp.zeros(columns)}


def conv(x, w, stride=1):
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def norm(x):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)


def mlp(keys):
    params = [weights(keys[0], 64, 128), weights(keys[1], 128, 128), weights(keys[2], 128, 10)]

    def loss(params, x):
        for layer in params[:-1]:
            x = jax.nn.relu(dense(layer, x))
        return (dense(params[-1], x) ** 2).mean()

    return loss, params, jnp.ones((32, 64))


def resnet(keys):
    filters = [
        jax.random.normal(key, (3, 3, i, o)) * 0.1
        for key, (i, o) in zip(keys, [(3, 16), (16, 16), (16, 16), (16, 32), (32, 32)], strict=False)
    ]
    params = {"f": filters, "skip": jax.random.normal(keys[6], (1, 1, 16, 32)), "head": weights(keys[7], 32, 10)}

    def loss(params, x):
        f = params["f"]
        x = jax.nn.relu(conv(x, f[0]))
        x = jax.nn.relu(x + conv(jax.nn.relu(norm(conv(x, f[1]))), f[2]))
        x = jax.nn.relu(conv(x, params["skip"], 2) + conv(jax.nn.relu(norm(conv(x, f[3], 2))), f[4]))
        return (dense(params["head"], x.mean((1, 2))) ** 2).mean()

    return loss, params, jnp.ones((4, 32, 32, 3))


def attention(params, x, heads=4):
    batch, length, width = x.shape
    q, k, v = (dense(params[name], x).reshape(batch, length, heads, -1) for name in "qkv")
    scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / (width // heads) ** 0.5)
    return dense(params["o"], jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(batch, length, width))


def block(keys, width):
    params = {name: weights(key, width, width) for name, key in zip("qkvo", keys, strict=False)}
    return params | {"up": weights(keys[4], width, 4 * width), "down": weights(keys[5], 4 * width, width)}


def transformer(keys):
    params = {"table": jax.random.normal(keys[0], (100, 64)), "blocks": [block(keys[1:], 64), block(keys[2:], 64)]}

    def loss(params, tokens):
        x = params["table"][tokens]
        for layer in params["blocks"]:
            x = x + attention(layer, norm(x))
            x = x + dense(layer["down"], jax.nn.gelu(dense(layer["up"], norm(x))))
        scores = jax.nn.log_softmax(norm(x) @ params["table"].T)
        return -jnp.take_along_axis(scores[:, :-1], tokens[:, 1:, None], -1).mean()

    return loss, params, jnp.ones((4, 32), jnp.int32)


def lstm(keys, unroll=1):
    params = {
        "x": weights(keys[0], 32, 256),
        "h": jax.random.normal(keys[1], (64, 256)) * 0.1,
        "out": weights(keys[2], 64, 8),
    }

    def loss(params, x):
        def cell(state, x):
            h, c = state
            i, f, g, o = jnp.split(dense(params["x"], x) + h @ params["h"], 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((x.shape[1], 64))
        _, hidden = lax.scan(cell, (zero, zero), x, unroll=unroll)
        return (dense(params["out"], hidden) ** 2).mean()

    return loss, params, jnp.ones((12, 8, 32))


def moe(keys):
    params = {
        "gate": weights(keys[0], 64, 4),
        "up": jax.random.normal(keys[1], (4, 64, 128)),
        "down": jax.random.normal(keys[2], (4, 128, 64)),
    }

    def loss(params, x):
        value, index = lax.top_k(jax.nn.softmax(dense(params["gate"], x)), 2)
        share = (jax.nn.one_hot(index, 4) * value[..., None]).sum(-2)
        hidden = jax.nn.silu(jnp.einsum("nd,edf->enf", x, params["up"]))
        return (jnp.einsum("enf,efd,ne->nd", hidden, params["down"], share) ** 2).mean()

    return loss, params, jnp.ones((48, 64))


def unet(keys):
    sizes = {"in": (4, 16), "down": (16, 32), "mid": (32, 32), "up": (32, 16), "out": (32, 4)}
    params = {
        name: jax.random.normal(key, (3, 3, i, o)) * 0.1
        for key, (name, (i, o)) in zip(keys, sizes.items(), strict=False)
    }
    params["time"], params["attend"] = weights(keys[6], 16, 32), block(keys[7:], 32)

    def loss(params, x):
        angle = jnp.arange(8) * 0.3
        when = dense(params["time"], jnp.concatenate([jnp.sin(angle), jnp.cos(angle)])[None])
        first = jax.nn.silu(norm(conv(x, params["in"])))
        low = jax.nn.silu(conv(first, params["down"], 2)) + when[:, None, None]
        low = low + conv(norm(low), params["mid"])
        flat = low.reshape(low.shape[0], -1, 32)
        low = (flat + attention(params["attend"], flat)).reshape(low.shape)
        up = conv(jax.image.resize(low, (*x.shape[:3], 32), "nearest"), params["up"])
        return ((conv(jnp.concatenate([first, up], -1), params["out"]) - x) ** 2).mean()

    return loss, params, jnp.ones((2, 16, 16, 4))


def lstm_unrolled(keys):
    return lstm(keys, unroll=12)


MODELS = {model.__name__: model for model in (mlp, resnet, transformer, lstm, moe, unet, lstm_unrolled)}


def step_of(model):
    loss, params, x = model(jax.random.split(jax.random.key(0), 16))

    def step(params, x):
        value, gradients = jax.value_and_grad(loss)(params, x)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    return step, (params, x)


def main(folder):
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")  # no folders of this machine
    costs = {}
    for name, model in MODELS.items():
        step, inputs = step_of(model)
        lowered = jax.jit(step).lower(*inputs)
        compiled = lowered.compile()
        cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
        costs[name] = {
            "flops": cost["flops"],
            "transcendentals": cost.get("transcendentals", 0),
            "bytes": cost["bytes accessed"],
            "arguments": memory.argument_size_in_bytes,
            "outputs": memory.output_size_in_bytes,
            "temporary": memory.temp_size_in_bytes,
        }
        if name == "lstm_unrolled":
            continue
        (folder / f"{name}.hlo.xz").write_bytes(lzma.compress(compiled.as_text().encode()))
        if name not in ("mlp", "lstm"):
            continue
        module = compiled.runtime_executable().hlo_modules()[0]
        (folder / f"{name}.pb.xz").write_bytes(lzma.compress(module.as_serialized_hlo_module_proto()))
        if name == "mlp":
            (folder / "mlp.mlir").write_text(lowered.as_text())
    (folder / "costs.json").write_text(json.dumps(costs, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
