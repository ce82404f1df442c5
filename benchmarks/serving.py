"""Placements of whole modules against what other tools do, on unlike devices: the table of docs/using.md.

    python benchmarks/serving.py [--models 10] [--seconds 2] [--csv FILE]
    python benchmarks/serving.py --experts [--models 2] [--seconds 2]

Ten language models by their published shapes, six sets of devices, three kinds of requests. A cell is the modelled time
of a request under accelerate's "auto" (its own functions decide) over ours; where theirs does not fit it is inf.
With --experts: mixtures of experts beside a host, tokens a second with experts apart, with whole layers, and by rules.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

from loadmaster.cluster import Cluster
from loadmaster.serving.exports import target_of
from loadmaster.serving.phases import serve
from loadmaster.serving.planning import plan_serving
from loadmaster.serving.requests import Requests
from loadmaster.serving.services import service_of

LLAMA = {"model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8}
MODELS = {
    "llama-1b": {
        **LLAMA,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "tie_word_embeddings": True,
    },
    "llama-3b": {
        **LLAMA,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "tie_word_embeddings": True,
    },
    "llama-8b": {
        **LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "mistral-7b": {
        "model_type": "mistral",
        "vocab_size": 32000,
        "num_key_value_heads": 8,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "qwen2-7b": {
        "model_type": "qwen2",
        "vocab_size": 152064,
        "num_key_value_heads": 4,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
    },
    "qwen3-4b": {
        "model_type": "qwen3",
        "vocab_size": 151936,
        "num_key_value_heads": 8,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "head_dim": 128,
        "tie_word_embeddings": True,
    },
    "gemma-2b": {
        "model_type": "gemma",
        "vocab_size": 256000,
        "num_key_value_heads": 1,
        "hidden_size": 2048,
        "intermediate_size": 16384,
        "num_hidden_layers": 18,
        "num_attention_heads": 8,
        "head_dim": 256,
    },
    "phi-2": {
        "model_type": "phi",
        "vocab_size": 51200,
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "pythia-6.9b": {
        "model_type": "gpt_neox",
        "vocab_size": 50432,
        "hidden_size": 4096,
        "intermediate_size": 16384,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "gpt2-xl": {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 1600, "n_layer": 48, "n_head": 25},
}
# (preset, free memory of each device in GiB): so small that some models must be split or offloaded
CLUSTERS = {
    "a100 80 + p100 16": ("1xa100-nvlink+1xp100-pcie", (80, 16)),
    "v100 8 + p100 8": ("1xv100-nvlink+1xp100-pcie", (8, 8)),
    "p100 6 + a100 10": ("1xp100-pcie+1xa100-nvlink", (6, 10)),
    "3 unlike": ("1xp100-pcie+1xv100-nvlink+1xa100-nvlink", (8, 8, 8)),
    "a100 8 + host": ("1xa100-nvlink+1xcpu", (8, 64)),
    "p100 6 + v100 6 + host": ("1xp100-pcie+1xv100-nvlink+1xcpu", (6, 6, 64)),
}
EXPERTS = {
    "mixtral-8x7b": {
        "model_type": "mixtral",
        "vocab_size": 32000,
        "num_key_value_heads": 8,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        "vocab_size": 151936,
        "num_key_value_heads": 4,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
    },
}
BESIDE_A_HOST = ("1x4090+1xcpu-7950x:128GiB", "1x3090+1x4090+1xcpu-7950x:128GiB")
REQUESTS = {
    "prefill": Requests(prompt=1024, new=1, batch=2),
    "decode": Requests(prompt=64, new=512, batch=2),
    "mixed": Requests(prompt=512, new=128, batch=4),
}


def cluster_of(preset: str, sizes: tuple[int, ...]) -> Cluster:
    cluster = Cluster.preset(preset)
    devices = tuple(replace(d, memory_bytes=size * 2**30) for d, size in zip(cluster.devices, sizes, strict=True))
    return replace(cluster, devices=devices)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=int, default=len(MODELS))
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--experts", action="store_true")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    if given.experts:
        return experts(given.models, given.seconds)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, config in list(MODELS.items())[: given.models]:
            (Path(folder) / "config.json").write_text(json.dumps(config))
            for asked, requests in REQUESTS.items():
                served = serve(folder, requests)
                rows += list(cells(name, asked, served, given.seconds))
                for row in rows[-len(CLUSTERS) :]:
                    print(*row, sep="\t", flush=True)
    print(verdict(rows))
    if given.csv:
        with given.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["model", "requests", "devices", "ours_ms", "auto_ms", "best_rule", "best_rule_ms"])
            writer.writerows(rows)


def experts(models: int, seconds: float) -> None:
    """A row for each model, kind of requests and cluster: tokens a second, modelled."""
    print("model", "requests", "devices", "experts apart", "for llama.cpp", "layers whole", "llama.cpp", sep="\t")
    with tempfile.TemporaryDirectory() as folder:
        for name, config in list(EXPERTS.items())[:models]:
            (Path(folder) / "config.json").write_text(json.dumps(config))
            for asked in ("decode", "mixed"):
                served = serve(folder, replace(REQUESTS[asked], batch=1))
                for cluster in BESIDE_A_HOST:
                    print(name, asked, cluster, *_speeds(served, cluster, seconds), sep="\t", flush=True)


def _speeds(served, cluster: str, seconds: float) -> list[str]:
    from loadmaster.serving.documents import tokens_per_s
    from loadmaster.serving.experts import Apart
    from loadmaster.serving.planning import priced

    found = []
    graphs = [(phase.name, phase.graph, phase.times) for phase in served.phases]
    on = Cluster.preset(cluster)
    apart = priced(served, on)
    found.append((apart, plan_serving(served, apart, None, seconds=seconds).best))
    llama = priced(served, on, target=target_of("llama.cpp"))
    found.append((llama, plan_serving(served, llama, target_of("llama.cpp"), seconds=seconds).best))
    whole = service_of(graphs, on, served.requests, blocks=served.blocks, experts=Apart(0))
    result = plan_serving(served, whole, None, seconds=seconds)
    found += [(whole, result.best), (whole, result.rules["llama.cpp"])]
    return [f"{tokens_per_s(service, p):.2f}" if p.fits else "does not fit" for service, p in found]


def cells(name: str, asked: str, served, seconds: float):
    graphs = [(phase.name, phase.graph, phase.times) for phase in served.phases]
    for label, (preset, sizes) in CLUSTERS.items():
        service = service_of(graphs, cluster_of(preset, sizes), served.requests, blocks=served.blocks)
        result = plan_serving(served, service, target_of("device-map"), seconds=seconds)
        fitting = {rule: p.value for rule, p in result.rules.items() if p.fits and rule not in ("llama.cpp", "vllm")}
        others = {rule: p.value for rule, p in result.rules.items() if p.fits}
        best = min(others, key=lambda rule: others[rule], default="none")
        ours = result.best.value / 1e6 if result.best.fits else math.inf
        auto = fitting.get("accelerate auto", math.inf * 1e6) / 1e6
        yield name, asked, label, round(ours, 3), round(auto, 3), best, round(others.get(best, math.inf) / 1e6, 3)


def verdict(rows: list[tuple]) -> str:
    """Shares over all cells in which ours fits."""
    cells = [row for row in rows if row[3] < math.inf]
    level = sum(row[3] <= row[6] * 1.0001 for row in cells)
    ratios = [math.log(row[4] / row[3]) for row in cells if row[4] < math.inf]
    mean = math.exp(sum(ratios) / len(ratios)) if ratios else math.nan
    only = sum(row[4] == math.inf for row in cells)
    return (
        f"{len(cells)} of {len(rows)} cells fit; never behind the best rule on {level} "
        f"({level / max(1, len(cells)):.1%}); "
        f"{mean:.2f}x over auto in the geometric mean of {len(ratios)}; auto does not fit on {only} where ours does"
    )


if __name__ == "__main__":
    main()
