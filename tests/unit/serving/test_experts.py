"""Experts: what a step is expected to use of them, by drawing; the same model however they are cut; runtimes' words."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from loadmaster import Cluster, InvalidPlan  # noqa: E402
from loadmaster.graph.columns import ints  # noqa: E402
from loadmaster.serving.documents import module_plan  # noqa: E402
from loadmaster.serving.experts import Apart, apart, used_share  # noqa: E402
from loadmaster.serving.exports import ModulePlan, ModuleRow, module_table, target_of  # noqa: E402
from loadmaster.serving.phases import serve  # noqa: E402
from loadmaster.serving.placing import evaluate, place  # noqa: E402
from loadmaster.serving.planning import plan_serving  # noqa: E402
from loadmaster.serving.requests import Requests  # noqa: E402
from loadmaster.serving.services import Service, service_of  # noqa: E402

ASKED = Requests(prompt=32, new=4, batch=1)
SHAPE = {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
}
CONFIGS = {
    "mixtral": {**SHAPE, "model_type": "mixtral", "intermediate_size": 128, "num_local_experts": 8},
    "qwen": {**SHAPE, "model_type": "qwen3_moe", "moe_intermediate_size": 32, "head_dim": 16, "num_experts": 16},
}


@pytest.fixture(scope="module", params=list(CONFIGS))
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return serve(written(tmp_path_factory.mktemp(request.param), request.param), ASKED)


def written(folder: Path, name: str) -> Path:
    (folder / "config.json").write_text(json.dumps(CONFIGS[name]))
    return folder


def on(cluster: Cluster, served: Any, how: Apart) -> Service:
    graphs = [(phase.name, phase.graph, phase.times) for phase in served.phases]
    return service_of(graphs, cluster, served.requests, blocks=served.blocks, experts=how)


def small(gpu_bytes: int, name: str = "1xa100-nvlink+1xcpu") -> Cluster:
    found = Cluster.preset(name)
    devices = [d if d.kind == "cpu" else replace(d, memory_bytes=gpu_bytes) for d in found.devices]
    return replace(found, devices=tuple(devices))


@pytest.mark.parametrize(("tokens", "chosen", "experts"), [(1, 2, 8), (3, 2, 8), (5, 4, 64), (400, 8, 128), (2, 4, 4)])
def test_the_share_in_use_is_that_of_draws(tokens: int, chosen: int, experts: int) -> None:
    rng = np.random.default_rng(0)
    shares = [
        len(set(np.concatenate([rng.permutation(experts)[:chosen] for _ in range(tokens)]).tolist())) / experts
        for _ in range(300)
    ]
    assert used_share(tokens, chosen, experts) == pytest.approx(np.mean(shares), abs=0.03)


def test_cut_or_not_the_model_is_the_same(served: Any) -> None:
    kept = sum(p.numel() * p.element_size() for p in served.model.parameters())
    rotary = served.model.model.rotary_emb.inv_freq
    for how in (Apart(), Apart(1), Apart(1, whole=True), Apart(0), Apart(3)):
        service = on(Cluster.preset("1xa100-nvlink"), served, how)
        assert int(service.weight_bytes.sum()) == pytest.approx(kept + rotary.numel() * rotary.element_size(), abs=200)
        for phase, plain in zip(service.phases, served.phases, strict=True):
            assert int(phase.problem.graph.flops.sum()) == pytest.approx(int(plain.graph.flops.sum()), rel=1e-6)


def test_a_token_reads_the_experts_it_is_sent_to(served: Any) -> None:
    config = served.model.config
    experts = getattr(config, "num_local_experts", None) or config.num_experts
    weights = sum(p.numel() * p.element_size() for n, p in served.model.named_parameters() if "experts" in n)
    token = served.phases[1].graph
    read = [int(apart(token, 1, how).graph.bytes_moved.sum()) for how in (Apart(), Apart(1), Apart(0))]
    assert max(read) - min(read) < 100
    assert int(token.bytes_moved.sum()) - read[0] == pytest.approx(weights * (1 - 2 / experts), rel=0.001)


def test_what_is_known_of_an_op_is_known_of_its_copy(served: Any) -> None:
    """Ops beside the experts, and all ops under their homes: signatures, given times and groups stay."""
    graph, rng = served.phases[1].graph, np.random.default_rng(0)
    graph = replace(
        graph,
        time_ns=ints(rng.integers(1, 1000, (graph.num_ops, 1))),
        colocate=ints(rng.permutation(graph.num_ops) // 3),
        signature={name: f"call of {name}" for name in graph.op_name[::2]},
        captured={"mode": "infer"},
    )
    cut = apart(graph, 1, Apart()).graph
    homes = on(
        Cluster.preset("1xa100-nvlink"), replace(served, phases=(replace(served.phases[1], graph=graph),)), Apart()
    )
    known = dict(zip(graph.op_name, graph.time_ns[:, 0].tolist(), strict=True))
    groups = dict(zip(graph.op_name, graph.colocate.tolist(), strict=True))
    for copy in (cut, homes.phases[0].problem.source):
        old = [op for op, name in enumerate(copy.op_name) if name in known]
        assert len(old) > graph.num_ops / 2 and copy.captured == graph.captured
        assert copy.time_ns[old, 0].tolist() == [known[copy.op_name[op]] for op in old]
        assert {n: s for n, s in graph.signature.items() if n in copy.op_name} == copy.signature
        pairs = {(groups[copy.op_name[op]], int(copy.colocate[op])) for op in old}
        assert len(pairs) == len({new for _, new in pairs}) == len({was for was, _ in pairs})


def test_parts_are_units_within_their_layer(served: Any) -> None:
    service = on(Cluster.preset("1xa100-nvlink"), served, Apart())
    parts = [u for u, layer in enumerate(service.within) if layer != u]
    assert len(parts) == 16  # two layers of eight
    for unit in parts:
        layer = service.names[service.within[unit]]
        assert re.fullmatch(re.escape(layer) + r"\.mlp\.experts\.\d+(-\d+)?", service.names[unit])
    assert len(set(service.weight_bytes[parts].tolist())) == 1


def test_streamed_experts_are_sent_as_far_as_they_are_used(served: Any) -> None:
    """The wire's time by hand: a quarter or an eighth of the experts for a token, all of them for a prompt."""
    cluster = small(10**9)
    for how in (Apart(), Apart(1, whole=True)):
        service = on(cluster, served, how)
        host, here = service.host, np.zeros((1, len(service.names)), np.int64)
        assert host is not None
        away = np.where(service.within != np.arange(len(service.names)), host, 0)[None]
        resident, streamed = evaluate(service, here, here)[0], evaluate(service, here, away)[0]
        experts = int(service.weight_bytes[away[0] == host].sum())
        rate = service.cluster.links[host, 0].bytes_per_s or 0
        config = served.model.config
        share = 1.0 if how.whole else 2 / (getattr(config, "num_local_experts", None) or config.num_experts)
        waits = sum(link_waits(service, phase) for phase in service.phases[1:2])
        assert streamed.step_ns[1] >= experts * share / rate * 1e9
        assert streamed.step_ns[1] <= resident.step_ns[1] + experts * share / rate * 1e9 + waits
        kept = int(streamed.peak_bytes[host] - resident.peak_bytes[host])
        assert experts <= kept <= experts * 1.05  # all of them stay in host memory, used or not


def link_waits(service: Service, phase: Any) -> int:
    """Latency of every weight that can be sent, one after the other."""
    sent = int((phase.problem.graph.role == 1).sum()) + len(service.names)
    return sent * max(link.latency_ns for link in service.cluster.links.values())


@pytest.mark.parametrize("target", ["device-map", "llama.cpp", "vllm", None])
def test_plans_stay_within_what_a_runtime_can_say(target: str | None, served: Any) -> None:
    chosen = None if target is None else target_of(target)
    weights = sum(p.numel() * 2 for p in served.model.parameters())
    cluster = small(int(weights * 0.7), "2xa100-nvlink+1xcpu" if target == "vllm" else "1xa100-nvlink+1xcpu")
    service = on(cluster, served, Apart() if chosen is None else chosen.experts)
    result = plan_serving(served, service, chosen, seconds=0.3)
    assert result.best.fits
    plan = module_plan("m", service, result.best)
    assert sum(row[3] for row in module_table(plan)) == int(service.weight_bytes.sum())
    if chosen is not None:
        assert chosen.write(plan)
        if target == "llama.cpp":
            assert (result.best.home == result.best.compute).all()


def test_experts_alone_on_the_host_are_found(tmp_path: Path) -> None:
    """Where a GPU holds all but the experts, of which a token uses a quarter, they are what leaves it."""
    heads = {"num_attention_heads": 32, "num_key_value_heads": 32}  # much attention
    larger = {**CONFIGS["mixtral"], "hidden_size": 4096, "intermediate_size": 4096, **heads}
    (tmp_path / "config.json").write_text(json.dumps(larger))
    served = serve(tmp_path, Requests(prompt=2, new=64, batch=1))
    experts = sum(p.numel() * 2 for n, p in served.model.named_parameters() if "experts" in n)
    room = sum(p.numel() * 2 for p in served.model.parameters()) - experts + 2**24
    service = on(small(room), served, Apart())
    best = place(service, seconds=1.0)
    parts = service.within != np.arange(len(service.names))
    assert best.fits and (best.home[parts] == service.host).all()
    assert (best.compute[service.within[parts]] == 0).all()
    whole = on(small(room), served, Apart(0))
    assert best.value < place(whole, seconds=1.0).value


def layer(experts: str, device: str = "a:0") -> list[ModuleRow]:
    return [
        ModuleRow(
            f"layers.{i}{tail}", experts if tail and i == 1 else device, experts if tail and i == 1 else device, 4
        )
        for i in range(3)
        for tail in ("", ".mlp.experts")
    ]


def test_experts_in_the_words_of_runtimes() -> None:
    rows = tuple(layer("cpu:0"))
    plan = ModulePlan("m", ("a:0", "b:0", "cpu:0"), ("a", "b", "cpu"), (9, 9, 99), rows)
    text = target_of("llama.cpp").write(plan)
    [pattern] = re.findall(r"-ot '(.*)=CPU'", text)
    # Names of tensors as gguf's constants have them: "blk.{bid}.ffn_up_exps" and so on.
    for name in ("blk.1.ffn_up_exps.weight", "blk.1.ffn_gate_exps.weight", "blk.1.ffn_down_exps.weight"):
        assert re.search(pattern, name)
    for name in (
        "blk.11.ffn_up_exps.weight",
        "blk.1.ffn_norm.weight",
        "blk.1.attn_q.weight",
        "blk.2.ffn_up_exps.weight",
    ):
        assert not re.search(pattern, name)
    with pytest.raises(InvalidPlan, match="computed apart"):
        target_of("device-map").write(plan)
    streamed = tuple(replace(row, device="a:0") for row in rows)
    found = json.loads(target_of("device-map").write(replace(plan, rows=streamed)))
    assert found["layers.1"] == 0 and found["layers.1.mlp.experts"] == "cpu" and found["layers.0.mlp.experts"] == 0
    with pytest.raises(InvalidPlan, match="another GPU"):
        target_of("llama.cpp").write(replace(plan, rows=tuple(layer("b:0"))))


def test_accelerate_streams_the_experts_of_a_layer(tmp_path: Path) -> None:
    """A map with a layer on the one place and its experts on the other runs and computes what the model did before."""
    accelerate = pytest.importorskip("accelerate")
    config = transformers.AutoConfig.from_pretrained(written(tmp_path, "mixtral"))
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    layers = [f"model.layers.{i}{tail}" for i in range(2) for tail in ("", ".mlp.experts")]
    rows = [
        ModuleRow(name, "a:0", "cpu:0" if name == layers[-1] else "a:0", 4)
        for name in ("model.embed_tokens", "model.rotary_emb", "model.norm", "lm_head", *layers)
    ]
    plan = ModulePlan("m", ("a:0", "cpu:0"), ("a", "cpu"), (9, 99), tuple(rows))
    found = json.loads(target_of("device-map").write(plan))
    accelerate.utils.modeling.check_device_map(model, found)
    ids = torch.arange(5)[None]
    with torch.no_grad():
        before = model(ids).logits
        # No GPU here: the host stands for it, the disk for the host.
        places = {name: "disk" if place == "cpu" else "cpu" for name, place in found.items()}
        moved = accelerate.dispatch_model(model, places, offload_dir=str(tmp_path / "away"), force_hooks=True)
        assert moved.model.layers[1].mlp.experts.down_proj.device.type == "meta"
        assert torch.equal(moved(ids).logits, before)
