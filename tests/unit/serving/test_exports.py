"""Exports: each target's words, by hand, and device maps that accelerate itself takes and runs."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from loadmaster import Cluster, DoesNotFit, InvalidPlan, UnknownName  # noqa: E402
from loadmaster.serving.documents import load_modules, module_plan, save_modules  # noqa: E402
from loadmaster.serving.exports import TARGETS, ModulePlan, ModuleRow, main_device, module_table, target_of  # noqa: E402
from loadmaster.serving.fitting import Setup, fit, remedies  # noqa: E402
from loadmaster.serving.planning import plan_serving, service_for, takes  # noqa: E402
from loadmaster.serving.readback import as_taken, differences, exported  # noqa: E402
from loadmaster.serving.reading import language_of  # noqa: E402
from loadmaster.serving.requests import Requests  # noqa: E402
from loadmaster.serving.rules import accelerate_map, from_map  # noqa: E402

ASKED = Requests(prompt=16, new=4, batch=1)


def by_hand(*devices: str, streamed: tuple[int, ...] = ()) -> ModulePlan:
    rows = [ModuleRow("embed", devices[0], devices[0], 8)]
    rows += [ModuleRow(f"layers.{i}", d, "cpu:0" if i in streamed else d, 4) for i, d in enumerate(devices)]
    rows.append(ModuleRow("head", devices[-1], devices[-1], 8))
    return ModulePlan("m", ("a:0", "b:0", "cpu:0"), ("a", "b", "cpu"), (100, 100, 1000), tuple(rows))


def test_a_device_map_names_every_module() -> None:
    text = target_of("device-map").write(by_hand("a:0", "a:0", "b:0", streamed=(1,)))
    assert json.loads(text) == {"embed": 0, "layers.0": 0, "layers.1": "cpu", "layers.2": 1, "head": 1}
    with pytest.raises(InvalidPlan, match="computed there and others are streamed"):
        target_of("device-map").write(by_hand("a:0", "a:0", "cpu:0", streamed=(1,)))
    assert main_device(by_hand("a:0", "cpu:0")) == "cpu"
    assert main_device(by_hand("a:0", "a:0", streamed=(1,))) == 0


def test_stages_in_the_words_of_each_runtime() -> None:
    plan = by_hand("a:0", "b:0", "b:0", "b:0")
    assert "VLLM_PP_LAYER_PARTITION=1,3" in target_of("vllm").write(plan)
    assert target_of("megatron").write(plan).endswith('--pipeline-model-parallel-layout "Et|t*3L"')
    assert '{"layers.1": SplitPoint.BEGINNING}' in target_of("pipelining").write(plan)
    assert target_of("llama.cpp").write(plan).endswith("-ngl 5 -ts 1,4")
    assert target_of("llama.cpp").write(by_hand("cpu:0", "cpu:0", "a:0")).endswith("-ngl 2 -ts 2,0")
    assert "-ot 'blk\\.(1)\\.=CPU'" in target_of("llama.cpp").write(by_hand("a:0", "cpu:0", "a:0"))
    with pytest.raises(InvalidPlan, match="has one"):
        target_of("onnxruntime").write(plan)
    beside = by_hand("b:0", "cpu:0", "b:0")
    text = json.loads(target_of("onnxruntime").write(beside))["session.layer_assignment_settings"]
    assert text == "gpu:1(=embed, =layers.0, =layers.2, =head); cpu(=layers.1)"


def test_what_a_runtime_cannot_say_is_refused() -> None:
    for name in ("vllm", "megatron", "pipelining"):
        with pytest.raises(InvalidPlan, match="two stages"):
            target_of(name).write(by_hand("a:0", "b:0", "a:0"))
        with pytest.raises(InvalidPlan, match="streamed"):
            target_of(name).write(by_hand("a:0", "b:0", streamed=(0,)))
    with pytest.raises(UnknownName, match="vlm"):
        target_of("vlm")


def test_the_split_points_cut_a_real_module() -> None:
    """torch.distributed.pipelining makes as many stages of a stack as the plan has."""
    from torch.distributed.pipelining import SplitPoint, pipeline

    class Stack(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(4)])

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x

    names: dict[str, Any] = {"SplitPoint": SplitPoint}
    line = next(
        line
        for line in target_of("pipelining").write(by_hand("a:0", "a:0", "b:0", "b:0")).splitlines()
        if "split_spec =" in line
    )
    exec(line, names)
    pipe = pipeline(Stack(), mb_args=(torch.zeros(2, 4),), split_spec=names["split_spec"])
    assert pipe.num_stages == 2


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_the_stages_of_a_decoder_give_its_logits(kind: str, folder: Path) -> None:
    """The printed lines, one stage after the other, against the model itself."""
    plan = by_hand("a:0", "a:0", "b:0")
    rows = (*plan.rows[:-1], ModuleRow("model.rotary_emb", "b:0", "b:0", 0), plan.rows[-1])
    text = target_of("pipelining").write(replace(plan, rows=rows))
    config = json.loads((folder / "config.json").read_text()) | {"model_type": kind, "head_dim": 16}
    config = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    space: dict[str, Any] = {"model": model}
    exec(text.rpartition("stage = ")[0], space)
    ids = torch.arange(10).reshape(2, 5)
    with torch.no_grad():
        x = ids
        for start, end in pairwise(space["starts"]):
            x = space["Stage"](model, start, end)(x)
        assert space["starts"] == (0, 2, 3) and torch.equal(x, model(ids).logits)


RANK = """
import os, sys, torch, transformers
import torch.distributed as dist
from torch.distributed.pipelining import ScheduleGPipe
rank, device = int(os.environ["RANK"]), torch.device("cpu")
dist.init_process_group("gloo")
torch.manual_seed(0)
config = transformers.AutoConfig.from_pretrained(sys.argv[1])
model = transformers.AutoModelForCausalLM.from_config(config).eval()
PRINTED
ids = torch.arange(20).reshape(4, 5)
with torch.no_grad():
    schedule = ScheduleGPipe(stage, n_microbatches=2)
    found = schedule.step(ids) if rank == 0 else schedule.step()
    assert rank == 0 or (found - model(ids).logits).abs().max() < 1e-6, (found - model(ids).logits).abs().max()
dist.destroy_process_group()
"""


@pytest.mark.full
def test_the_printed_stages_run_in_two_processes(folder: Path, tmp_path: Path) -> None:
    """torch's own schedule over gloo, a stage in each process, against the whole model."""
    plan = by_hand("a:0", "a:0", "b:0")
    rows = (*plan.rows[:-1], ModuleRow("model.rotary_emb", "b:0", "b:0", 0), plan.rows[-1])
    script = tmp_path / "rank.py"
    script.write_text(RANK.replace("PRINTED", target_of("pipelining").write(replace(plan, rows=rows))))
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29641", "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen([sys.executable, script, folder], env=os.environ | shared | {"RANK": str(rank)})
        for rank in range(2)
    ]
    assert [process.wait(180) for process in ranks] == [0, 0]


@pytest.mark.parametrize("target", list(TARGETS))
def test_plans_for_a_target_can_be_said_in_its_words(target: str, folder: Path) -> None:
    cluster = Cluster.preset("1xa100-nvlink+1xp100-pcie+1xcpu")
    devices = [d if d.kind.startswith("cpu") else replace(d, memory_bytes=250_000) for d in cluster.devices]
    served, service = service_for(folder, replace(cluster, devices=tuple(devices)), ASKED)
    result = plan_serving(served, service, target_of(target), seconds=0.4)
    assert takes(service, target_of(target), result.best.compute, result.best.home)
    plan = module_plan("m", service, result.best)
    found = exported(plan, target_of(target))
    assert not differences(plan, found.plan) and not found.over_bytes


def test_what_a_runtime_would_do_otherwise_is_refused_with_the_nearest() -> None:
    """The table of words planned on the second GPU: 8 + 4 x 4 bytes beside the first two layers are 24 of 22."""

    def planned(table: str, memory: int) -> ModulePlan:
        plan = by_hand("a:0", "a:0", "a:0", "a:0", "b:0")
        rows = (replace(plan.rows[0], device=table, home=table), *plan.rows[1:])
        return replace(plan, rows=rows, memory_bytes=(memory, 100, 1000))

    for name in ("vllm", "megatron", "pipelining"):
        assert exported(planned("a:0", 24), target_of(name)).peak_bytes["a:0"] == 24
        with pytest.raises(InvalidPlan, match="'embed' goes to a:0, not to b:0"):
            exported(planned("b:0", 24), target_of(name))
        with pytest.raises(DoesNotFit, match="would take") as refused:
            exported(planned("b:0", 22), target_of(name))
        cuts = {"vllm": "PARTITION=3,2", "megatron": "Et*3|t*2L", "pipelining": '"layers.3"'}
        assert cuts[name] in refused.value.fix
    with pytest.raises(InvalidPlan, match="'embed' goes to cpu:0"):
        exported(planned("a:0", 100), target_of("llama.cpp"))


def test_a_tied_head_is_there_twice() -> None:
    """vLLM builds the table of words on its first and on its last rank."""
    plan = by_hand("a:0", "b:0")
    head = replace(plan.rows[-1], device="a:0", home="a:0", weight_bytes=0, tied="embed")
    found = as_taken(replace(plan, rows=(*plan.rows[:-1], head)), target_of("vllm"))
    assert found.peak_bytes == {"a:0": 12, "b:0": 12, "cpu:0": 0}


def test_accelerate_runs_the_map(folder: Path, tmp_path: Path) -> None:
    """The exported map covers the model, and a model dispatched by it computes what it computed before."""
    accelerate = pytest.importorskip("accelerate")
    cluster = Cluster.preset("1xa100-nvlink+1xp100-pcie")
    devices = tuple(replace(device, memory_bytes=400_000) for device in cluster.devices)
    served, service = service_for(folder, replace(cluster, devices=devices), ASKED, precision="float32")
    result = plan_serving(served, service, target_of("device-map"), seconds=0.4)
    found = json.loads(target_of("device-map").write(module_plan("m", service, result.best)))
    assert len(set(found.values())) > 1
    config = transformers.AutoConfig.from_pretrained(folder)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    accelerate.utils.modeling.check_device_map(model, found)
    ids = torch.arange(5)[None]
    with torch.no_grad():
        before = model(ids).logits
        # No GPU here: the host stands for the one, the disk for the other.
        places = {name: "disk" if place == 1 else "cpu" for name, place in found.items()}
        moved = accelerate.dispatch_model(model, places, offload_dir=str(tmp_path), force_hooks=True)
        assert torch.equal(moved(ids).logits, before)


def test_accelerates_own_map_is_read_as_it_means(folder: Path) -> None:
    pytest.importorskip("accelerate")
    cluster = Cluster.preset("2xa100-nvlink+1xcpu")
    devices = [d if d.kind.startswith("cpu") else replace(d, memory_bytes=160_000) for d in cluster.devices]
    served, service = service_for(folder, replace(cluster, devices=tuple(devices)), ASKED)
    found = accelerate_map(served.model, service, "sequential")
    compute, home = from_map(service, found)
    assert service.host not in compute.tolist()
    for unit, name in enumerate(service.names):
        if name in found:
            assert home[unit] == (service.host if found[name] == "cpu" else found[name])


def test_a_saved_plan_is_read_back(folder: Path, tmp_path: Path) -> None:
    served, service = service_for(folder, Cluster.preset("2xp100-pcie"), ASKED)
    best = plan_serving(served, service, None, seconds=0.1).best
    plan = module_plan("tiny", service, best)
    save_modules(plan, service, best, tmp_path / "plan.json")
    assert load_modules(tmp_path / "plan.json") == plan
    data = json.loads((tmp_path / "plan.json").read_text())
    data["modules"][0]["device"] = "nowhere"
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(InvalidPlan, match="nowhere"):
        load_modules(tmp_path / "plan.json")
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(InvalidPlan, match="not a plan of modules"):
        load_modules(tmp_path / "plan.json")


def test_neighbours_share_a_row_of_the_table() -> None:
    rows = module_table(by_hand("a:0", "b:0", "b:0", streamed=(2,)))
    assert [(label, device) for label, device, *_ in rows] == [
        ("embed … layers.0", "a:0"),
        ("layers.1", "b:0"),
        ("layers.2", "b:0"),
        ("head", "b:0"),
    ]
    assert rows[2][2] == "streamed from cpu:0"


def test_fits_agrees_with_a_captured_plan(folder: Path) -> None:
    """What the config.json alone says of memory, against the graph: enough for its plan, and for no more than that."""
    asked = Requests(prompt=64, new=8, batch=2)
    setup = Setup(language_of(str(folder)), Cluster.preset("10MB"), asked, precision="float32")
    found = fit(setup)
    served, service = service_for(folder, setup.cluster, asked, precision="float32")
    peak = int(plan_serving(served, service, None, seconds=0.1).best.peak_bytes.max())
    assert found.fits and service.weight_bytes.sum() < found.need_bytes and peak <= found.need_bytes
    tight = replace(setup, cluster=Cluster.preset(f"{int(found.need_bytes * 0.75)}b"))
    told = " ".join(change.what for change in remedies(tight))
    assert not fit(tight).fits and "host" in told


def test_onnx_runtime_reads_the_settings(tmp_path: Path) -> None:
    """A model whose nodes carry module paths opens and runs with the exported words; words of another form do not."""
    ort = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    nodes = [onnx.helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"], name=f"n{i}") for i in range(3)]
    for node, path in zip(nodes, ("embed", "layers.0", "head"), strict=True):
        node.metadata_props.add(key="layer_ann", value=path)
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in ("t0", "t3")]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:])
    model = onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 17)])
    found = json.loads(target_of("onnxruntime").write(by_hand("cpu:0")))

    def opened(settings: dict[str, str]) -> Any:
        options = ort.SessionOptions()
        for key, value in settings.items():
            options.add_session_config_entry(key, value)
        return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    out = opened(found).run(None, {"t0": torch.ones(2).numpy()})
    assert out[0].tolist() == [1, 1]
    with pytest.raises(Exception, match=r"(?i)layer"):
        opened({"session.layer_assignment_settings": "cpu(=embed"})


def test_megatron_reads_the_layout() -> None:
    """Megatron's own parser finds the layers of each stage."""
    layout = pytest.importorskip("megatron.core.transformer.pipeline_parallel_layer_layout")
    text = target_of("megatron").write(by_hand("a:0", "b:0", "b:0", "b:0"))
    size, words = re.findall(r"--pipeline-model-parallel-size (\d+) .*-layout \"(.*)\"", text)[0]
    stages = layout.PipelineParallelLayerLayout.from_str(words, int(size)).layout
    kinds = [[kind.name for chunk in stage for kind in chunk] for stage in stages]
    assert kinds == [["embedding", "decoder"], ["decoder", "decoder", "decoder", "loss"]]


def test_llama_cpp_finds_the_tensors() -> None:
    """The patterns of -ot against the names that gguf gives to tensors."""
    constants = pytest.importorskip("gguf.constants")
    text = target_of("llama.cpp").write(by_hand("a:0", "cpu:0", "a:0"))
    [pattern] = re.findall(r"-ot '(.*)=CPU'", text)
    names = [constants.TENSOR_NAMES[kind] for kind in (constants.MODEL_TENSOR.ATTN_Q, constants.MODEL_TENSOR.FFN_UP)]
    for name in names:
        assert re.search(pattern, f"{name.format(bid=1)}.weight")
        assert not any(re.search(pattern, f"{name.format(bid=bid)}.weight") for bid in (0, 2, 10, 11))
