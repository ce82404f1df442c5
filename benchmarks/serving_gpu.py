"""Tokens per second of device maps on one GPU with little memory and its host: ours against accelerate's "auto".

    python benchmarks/serving_gpu.py plan MAPS              # here: needs loadmaster, transformers, accelerate
    python benchmarks/serving_gpu.py run MAPS --out FILE    # on the GPU: needs torch, transformers, accelerate
    python benchmarks/serving_gpu.py terms MAPS             # on the GPU: what the terms of the model are there

`plan` writes both maps of every model; `run` dispatches the model (weights of zeros, whose times are those of any
others) by each map in turn, generates greedily and writes tokens per second and peak memory as CSV.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import time
from pathlib import Path

LLAMA = {"model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8}
MODELS = {
    "llama-3b": (
        {**LLAMA, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24},
        6,
    ),
    "mistral-7b": (
        {
            "model_type": "mistral",
            "vocab_size": 32000,
            "num_key_value_heads": 8,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "sliding_window": None,
        },
        8,
    ),
}
PROMPT, NEW, BATCH = 256, 16, 2
LAYERS = 4  # of the stack that is timed: more weights than a CPU's cache holds
ROOM = 2  # GiB of the cap that no plan may use: cuBLAS, fragments, and weights on their way
# One H200 beside a host of 16 cores, as `loadmaster measure` found them, rounded; what accelerate adds to that is the
# target's.
CLUSTER = {
    "schema": "loadmaster.cluster/1",
    "name": "h200+host",
    "devices": [
        {
            "name": "h200:0",
            "kind": "h200",
            "memory_bytes": 0,
            "flops_per_s": {"default": 51e12, "bfloat16": 890e12, "float16": 890e12},
            "bytes_per_s": 4.3e12,
            "launch_ns": 2000,
        },
        {
            "name": "cpu:0",
            "kind": "cpu",
            "memory_bytes": 100 * 2**30,
            "flops_per_s": {"default": 1.2e12, "bfloat16": 5e12},
            "bytes_per_s": 168e9,
            "launch_ns": 3000,
        },
    ],
    "links": [
        {"from": "h200:0", "to": "cpu:0", "bytes_per_s": 54e9, "latency_ns": 22000},
        {"from": "cpu:0", "to": "h200:0", "bytes_per_s": 54e9, "latency_ns": 22000},
    ],
}


def plan(folder: Path) -> None:
    from dataclasses import replace

    from loadmaster.files import cluster_from_json
    from loadmaster.serving.documents import module_plan, summary
    from loadmaster.serving.exports import main_device, target_of
    from loadmaster.serving.planning import plan_serving, service_for
    from loadmaster.serving.requests import Requests
    from loadmaster.serving.rules import accelerate_map

    for name, (config, gib) in MODELS.items():
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text(json.dumps(config))
        cluster = cluster_from_json(CLUSTER)
        gpu, host = cluster.devices
        cluster = replace(cluster, devices=(replace(gpu, memory_bytes=(gib - ROOM) * 2**30), host))
        target = target_of("device-map")
        served, service = service_for(place, cluster, Requests(PROMPT, NEW, BATCH), target=target)
        result = plan_serving(served, service, target, seconds=6.0)
        ours = module_plan(name, service, result.best)
        maps = {
            "loadmaster": {"map": json.loads(target_of("device-map").write(ours)), "main_device": main_device(ours)},
            "auto": {"map": accelerate_map(served.model, service, "auto"), "main_device": 0},
        }
        modelled = {
            "loadmaster": summary(service, result.best),
            "auto": summary(service, result.rules["accelerate auto"]),
        }
        (place / "maps.json").write_text(json.dumps({"gib": gib, "maps": maps, "modelled": modelled}, indent=1))
        for rule, told in modelled.items():
            speed, first = told["tokens_per_s"], told["first_token_ns"] / 1e9
            print(
                name,
                rule,
                f"{speed:.1f} tokens/s modelled, first token {first:.2f} s, fits: {told['fits']}",
                flush=True,
            )


def run(folder: Path, out: Path) -> None:
    rows = []
    for place in sorted(path for path in folder.iterdir() if (path / "maps.json").exists()):
        told = json.loads((place / "maps.json").read_text())
        for rule in ("loadmaster", "auto"):
            row = {"model": place.name, "rule": rule, "gib": told["gib"]}
            row["modelled_tokens_per_s"] = told["modelled"][rule]["tokens_per_s"]
            # A process for each: memory that a failure leaves behind is nobody else's.
            done = subprocess.run([sys.executable, __file__, "one", str(place), "--rule", rule], capture_output=True)
            last = done.stdout.decode().splitlines()[-1:] or ["{}"]
            row |= json.loads(last[0]) if done.returncode == 0 else {"error": done.stderr.decode()[-300:]}
            rows.append(row)
            print(row, flush=True)
            with out.open("w", newline="") as file:
                writer = csv.DictWriter(file, sorted({key for one in rows for key in one}))
                writer.writeheader()
                writer.writerows(rows)


def measured(place: Path, how: dict, gib: int) -> dict:
    import torch
    from accelerate import dispatch_model
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(gib * 2**30 / torch.cuda.get_device_properties(0).total_memory)
    torch.cuda.reset_peak_memory_stats()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(place), dtype=torch.bfloat16)
    rotary = {name: m for name, m in model.named_modules() if name.endswith("rotary_emb")}
    model = model.to_empty(device="cpu").eval()
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.zero_()
    for module in rotary.values():
        module.inv_freq.fill_(0.01)
    model = dispatch_model(model, how["map"], main_device=how["main_device"])
    ids = torch.zeros(BATCH, PROMPT, dtype=torch.long, device="cuda")

    def generate(count: int) -> None:
        model.generate(ids, do_sample=False, min_new_tokens=count, max_new_tokens=count, pad_token_id=0)

    with torch.no_grad():
        generate(2)
        first, seconds = _taken(lambda: generate(1)), _taken(lambda: generate(NEW))
    peak = torch.cuda.max_memory_allocated()
    told = {"tokens_per_s": BATCH * NEW / seconds, "seconds": seconds, "first_token_s": first}
    return {**{key: round(value, 3) for key, value in told.items()}, "peak_bytes": peak}


def _taken(call) -> float:
    import torch

    torch.cuda.synchronize()
    begun = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def terms(folder: Path) -> None:
    """What a pass is made of, each alone: a weight copied as accelerate's hooks copy it, a layer on host and GPU."""
    import torch

    print("threads", torch.get_num_threads(), torch.__config__.parallel_info().splitlines()[1:4], flush=True)
    for mib in (0.01, 6, 24, 48, 112, 250, 750):
        host = torch.zeros(int(mib * 2**19), dtype=torch.bfloat16)
        for how in ("fresh", "kept"):
            seconds = _each(lambda how=how, host=host: _copied(host, how), 8)
            rate = host.numel() * 2 / seconds / 1e9
            print(f"copy of {mib} MiB, {how} memory: {seconds * 1e3:.3f} ms, {rate:.1f} GB/s", flush=True)
    for place in sorted(path for path in folder.iterdir() if (path / "config.json").exists()):
        for device in ("cpu", "cuda"):
            for rows in (1, PROMPT):
                seconds = _each(_layer(place, device, rows), 3 if rows > 1 and device == "cpu" else 10) / LAYERS
                print(f"{place.name}: a layer on {device}, {BATCH}x{rows} tokens: {seconds * 1e3:.3f} ms", flush=True)


def _each(call, times: int) -> float:
    """Seconds of one call: the median of so many."""
    call()
    return sorted(_taken(call) for _ in range(times))[times // 2]


def _copied(host, how: str):
    """As `set_module_tensor_to_device` does it: pageable, and the allocator's cache emptied after each tensor."""
    import torch

    there = host.to("cuda")
    if how == "fresh":
        torch.cuda.empty_cache()
    return there.numel()


def _layer(place: Path, device: str, rows: int):
    """A pass through a few decoder layers."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(place)
    config.num_hidden_layers, config.vocab_size = LAYERS, 1024
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        ids = torch.zeros(BATCH, rows, dtype=torch.long)

    def call() -> None:
        with torch.no_grad():
            model.model(input_ids=ids, use_cache=False)

    return call


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["plan", "run", "one", "terms"])
    parser.add_argument("--rule", default="loadmaster")
    parser.add_argument("maps", type=Path)
    parser.add_argument("--out", type=Path, default=Path("serving_gpu.csv"))
    given = parser.parse_args()
    if given.verb == "plan":
        plan(given.maps)
    elif given.verb == "terms":
        terms(given.maps)
    elif given.verb == "one":
        told = json.loads((given.maps / "maps.json").read_text())
        print(json.dumps(measured(given.maps, told["maps"][given.rule], told["gib"])))
    else:
        run(given.maps, given.out)


if __name__ == "__main__":
    main()
