"""Serving: what phases hold, how placements are judged, and that the search finds the best of all placements."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from loadmaster import Cluster, ImportFailed, InvalidSetting, UnknownName, UnreadableFile, simulate
from loadmaster.plans import Plan
from loadmaster.serving.exports import target_of
from loadmaster.serving.phases import build, serve
from loadmaster.serving.placing import evaluate, place
from loadmaster.serving.planning import op_by_op, plan_serving, service_for
from loadmaster.serving.quantizing import quantized
from loadmaster.serving.requests import Requests
from loadmaster.serving.services import Service, cache_bytes, service_of

ASKED = Requests(prompt=32, new=8, batch=2)


@pytest.fixture(scope="module")
def served(folder: Path) -> Any:
    return serve(folder, ASKED)


def on(cluster: str, served: Any, gpu_bytes: int | None = None, **settings: Any) -> Service:
    found = Cluster.preset(cluster)
    if gpu_bytes is not None:
        devices = [d if d.kind.startswith("cpu") else replace(d, memory_bytes=gpu_bytes) for d in found.devices]
        found = replace(found, devices=tuple(devices))
    graphs = [(phase.name, phase.graph, phase.times) for phase in served.phases]
    return service_of(graphs, found, served.requests, blocks=served.blocks, **settings)


def test_weights_and_cache_have_the_bytes_that_torch_counts(served: Any) -> None:
    service = on("1xa100-nvlink", served)
    kept = [*served.model.parameters(), served.model.model.rotary_emb.inv_freq]
    assert int(service.weight_bytes.sum()) == sum(p.numel() * p.element_size() for p in kept)
    layers, heads, size = 3, 2, 64 // 4
    tokens = ASKED.prompt + ASKED.new
    cache = 2 * layers * ASKED.batch * heads * size * tokens * 2
    assert cache <= int(cache_bytes(service).sum()) <= cache + 2**12  # and the token's number, and rotary constants


def test_units_are_blocks_and_what_stands_beside_them(served: Any) -> None:
    names = on("1xa100-nvlink", served).names
    assert [name for name in names if "layers" in name] == ["model.layers.0", "model.layers.1", "model.layers.2"]
    assert {"model.embed_tokens", "model.norm", "lm_head"} <= set(names)


def test_a_phase_is_judged_by_the_simulator(served: Any) -> None:
    service = on("2xp100-pcie", served)
    rng = np.random.default_rng(0)
    compute = rng.integers(0, 2, (3, len(service.names)))
    for row, placement in enumerate(evaluate(service, compute, compute)):
        for phase, step in zip(service.phases, placement.step_ns, strict=True):
            device = phase.placed(compute[row : row + 1], compute[row : row + 1])[0]
            line = simulate(phase.problem, Plan.of(phase.problem, device))
            assert line.step_ns == step
            assert (line.peak_bytes <= placement.peak_bytes).all()
        times = [phase.times for phase in service.phases]
        assert placement.value == pytest.approx(sum(t * s for t, s in zip(times, placement.step_ns, strict=True)))
        assert placement.bound <= placement.value


def test_streamed_weights_cost_their_way_and_no_room(served: Any) -> None:
    service = on("1xa100-nvlink+1xcpu", served)
    host = service.host
    assert host is not None
    here = np.zeros((1, len(service.names)), np.int64)
    away = here.copy()
    away[0, 1:4] = host
    resident, streamed = evaluate(service, here, here)[0], evaluate(service, here, away)[0]
    assert streamed.peak_bytes[0] < resident.peak_bytes[0]
    sent = sum(int(service.weight_bytes[u]) for u in range(1, 4))
    link = service.cluster.links[host, 0]
    assert link.bytes_per_s is not None
    assert all(step >= sent / link.bytes_per_s * 1e9 for step in streamed.step_ns)


@pytest.mark.parametrize("gpu_bytes", [None, 180_000])
def test_the_search_finds_the_best_of_all_placements(served: Any, gpu_bytes: int | None) -> None:
    service = on("1xp100-pcie+1xv100-nvlink", served, gpu_bytes)
    leaders = np.unique(service.together)
    rows = np.array(list(product(range(2), repeat=len(leaders))))
    table = rows[:, np.searchsorted(leaders, service.together)]
    best = min(evaluate(service, table, table), key=lambda p: (p.over_bytes, p.value))
    found = place(service, seconds=3.0, seed=0)
    assert (found.over_bytes, found.value) == (best.over_bytes, best.value)


def test_ours_is_never_behind_the_rules_of_others(served: Any) -> None:
    for cluster, gpu_bytes in (("2xp100-pcie", None), ("1xa100-nvlink+1xcpu", 150_000)):
        service = on(cluster, served, gpu_bytes)
        result = plan_serving(served, service, None, seconds=0.5)
        for rule in result.rules.values():
            assert (result.best.over_bytes, result.best.value) <= (rule.over_bytes, rule.value * 1.0001)


def test_what_whole_modules_cost_is_never_less_than_nothing(served: Any) -> None:
    service = on("2xp100-pcie", served)
    apart = np.arange(len(service.names))[None] % 2
    [poor] = evaluate(service, apart, apart)
    free = op_by_op(service, poor)
    assert poor.bound <= free < poor.value  # modules dealt out in turn: a schedule op by op beats that


def test_throughput_counts_the_busiest_device(served: Any) -> None:
    many = replace(served, requests=replace(ASKED, flight=64))
    graphs = [(phase.name, phase.graph, phase.times) for phase in served.phases]
    service = service_of(graphs, Cluster.preset("2xp100-pcie"), many.requests, goal="throughput", blocks=served.blocks)
    alone = np.zeros((1, len(service.names)), np.int64)
    [placement] = evaluate(service, alone, alone)
    work = sum(p.times * p.problem.op_ns[~p.is_home, 0].sum() for p in service.phases)
    assert placement.value == pytest.approx(work)
    assert place(service, seconds=1.0).value < 0.75 * placement.value  # two devices share it


def test_fewer_bits_take_less_room_and_traffic(served: Any) -> None:
    graph = served.phases[1].graph
    half, quarter = quantized(graph, "int8"), quantized(graph, "int4")
    products = sum(p.numel() for n, p in served.model.named_parameters() if p.dim() == 2 and "embed" not in n)
    saved = int(graph.nbytes[graph.alias_of < 0].sum() - half.nbytes[half.alias_of < 0].sum())
    assert saved == pytest.approx(products, rel=0.01)
    assert quarter.bytes_moved.sum() < half.bytes_moved.sum() < graph.bytes_moved.sum()
    assert half.flops.tolist() == graph.flops.tolist()


def test_requests_are_read_as_people_write_them() -> None:
    assert Requests.of("prompt=2k,new=256,batch=4") == Requests(2048, 256, 4)
    for text in ("prompt=0", "prompt=x", "batch=-1"):
        with pytest.raises(InvalidSetting):
            Requests.of(text)
    with pytest.raises(UnknownName, match="promt"):
        Requests.of("promt=3")


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="there is no"):
        build(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UnreadableFile, match="cannot be read"):
        build(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "nothing-like-it"}')
    with pytest.raises(ImportFailed, match="not known"):
        build(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(ImportFailed, match="no causal language model"):
        build(tmp_path)
    with pytest.raises(InvalidSetting, match="float8"):
        build(tmp_path, "float8")


def test_a_goal_that_is_none(served: Any, folder: Path) -> None:
    with pytest.raises(InvalidSetting, match="no goal"):
        service_for(folder, Cluster.preset("1xa100-nvlink"), ASKED, goal="fame")  # type: ignore[arg-type]


def test_a_runtime_is_priced_with_what_it_adds(folder: Path) -> None:
    """By hand: no op is shorter than the runtime asks for, and weights come no faster than it copies."""
    cluster = Cluster.preset("1xh200+1xcpu-7950x")
    overheads = target_of("device-map").overheads
    assert overheads is not None
    _, service = service_for(folder, cluster, ASKED, target=target_of("device-map"))
    _, plain = service_for(folder, cluster, ASKED, target=target_of("llama.cpp"))
    slow, fast = service.phases[1], plain.phases[1]
    assert (slow.problem.op_ns[~slow.is_home, 0] >= overheads.op_ns).all()
    assert slow.problem.op_ns[~slow.is_home, 0].min() - fast.problem.op_ns[~fast.is_home, 0].min() == pytest.approx(
        overheads.op_ns - cluster.devices[0].launch_ns, abs=1000
    )
    assert service.cluster.links[1, 0].bytes_per_s == overheads.copy_bytes_per_s
    assert plain.cluster.links == cluster.links
    table = np.zeros((1, len(service.names)), np.int64)
    away = table.copy()
    away[0, 2] = 1
    [streamed] = evaluate(service, table, away)
    assert streamed.step_ns[1] >= service.weight_bytes[2] / overheads.copy_bytes_per_s * 1e9
