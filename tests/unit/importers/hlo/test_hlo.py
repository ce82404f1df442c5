"""XLA programs: six small models against XLA's own analysis of them, and programs written by hand."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from loadmaster.cluster import Cluster
from loadmaster.cost import price
from loadmaster.errors import ImportFailed, InvalidSetting, LoadmasterError, UnknownName, UnreadableFile
from loadmaster.graph import INPUT, OUTPUT, STATE, Graph
from loadmaster.importers import load
from loadmaster.importers.hlo.graph import graph_of
from loadmaster.importers.hlo.load import parse
from loadmaster.importers.hlo.text import parse_hlo
from loadmaster.plans import Plan
from loadmaster.simulator import simulate
from tests.work import calls_in

DATA = Path(__file__).parent / "data"
COSTS: dict[str, dict[str, Any]] = json.loads((DATA / "costs.json").read_text())
MODELS = ("mlp", "resnet", "transformer", "lstm", "moe", "unet")
every_model = pytest.mark.parametrize("name", MODELS)

SMALL = """HloModule small, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(%a, %b)
}

%fused (p: f32[8,4]) -> f32[8,4] {
  %p = f32[8,4]{1,0} parameter(0)
  %e = f32[8,4]{1,0} exponential(%p)
  ROOT %m = f32[8,4]{1,0} multiply(%e, %p)
}

%cond (s: (s32[], f32[8,4])) -> pred[] {
  %s = (s32[], f32[8,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] constant(5)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

%body (s: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %s = (s32[], f32[8,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[8,4]{1,0} get-tuple-element(%s), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %y = f32[8,4]{1,0} tanh(%x)
  ROOT %t = (s32[], f32[8,4]{1,0}) tuple(%next, %y)
}

ENTRY %main (x: f32[8,16], w: f32[16,4]) -> (f32[], f32[8,4]) {
  %x = f32[8,16]{1,0} parameter(0)
  %w = f32[16,4]{1,0} parameter(1)
  %d = f32[8,4]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, METADATA
  %f = f32[8,4]{1,0} fusion(%d), kind=kLoop, calls=%fused
  %zero = s32[] constant(0)
  %start = (s32[], f32[8,4]{1,0}) tuple(%zero, %f)
  %loop = (s32[], f32[8,4]{1,0}) while(%start), condition=%cond, body=%body
  %last = f32[8,4]{1,0} get-tuple-element(%loop), index=1
  %c = f32[] constant(0)
  %total = f32[] reduce(%last, %c), dimensions={0,1}, to_apply=%sum
  ROOT %result = (f32[], f32[8,4]{1,0}) tuple(%total, %last)
}
"""


SMALL = SMALL.replace(
    "METADATA", 'metadata={op_name="jit(f)/layer/dot_general" source_file="/a/b/net.py" source_line=7}'
)


def graph(text: str = SMALL, **settings: Any) -> Graph:
    return graph_of(parse_hlo(text, "small.hlo"), **settings)


def named(g: Graph, name: str) -> int:
    return g.op_name.index(name)


def bytes_of(g: Graph, *roles: int) -> int:
    return sum(int(g.nbytes[t]) for t in range(g.num_tensors) if g.role[t] in roles)


def test_a_loop_without_a_body_is_refused() -> None:
    for left in ("", ", condition=%cond", ", body=%body"):
        with pytest.raises(ImportFailed, match="not a condition and a body"):
            graph(SMALL.replace(", condition=%cond, body=%body", left))


# Against XLA


@every_model
def test_totals_are_those_of_xla(name: str) -> None:
    """Arithmetic and traffic within a thousandth; a loop, which XLA counts once, against the same loop unrolled, from
    which XLA can take common work out: within a twentieth, and traffic within a quarter."""
    g, cost = load(DATA / f"{name}.hlo.xz"), COSTS["lstm_unrolled" if name == "lstm" else name]
    near_flops, near_bytes = (0.05, 0.25) if name == "lstm" else (0.001, 0.001)
    assert int(g.flops.sum()) == pytest.approx(cost["flops"] + cost["transcendentals"], rel=near_flops)
    assert int(g.bytes_moved.sum()) == pytest.approx(cost["bytes"], rel=near_bytes)


@every_model
def test_arguments_and_results_have_the_bytes_that_xla_says(name: str) -> None:
    g, cost = load(DATA / f"{name}.hlo.xz"), COSTS[name]
    assert bytes_of(g, INPUT) == cost["arguments"]
    pointers = cost["outputs"] - bytes_of(g, OUTPUT)  # eight bytes for each part of the tuple that is returned
    assert 0 <= pointers <= 8 * 64 and pointers % 8 == 0


@every_model
def test_peak_memory_is_near_that_of_xla(name: str) -> None:
    """In the order of the module on one device. XLA also writes results over operands, and pads; what a loop carries
    lies in the same place before and after it, which a graph does not know."""
    cost = COSTS[name]
    problem = price(load(DATA / f"{name}.hlo.xz"), Cluster.preset("2xa100-nvlink"))
    peak = int(simulate(problem, Plan.of(problem, [0] * problem.graph.num_ops)).peak_bytes[0])
    share = peak / (cost["arguments"] + cost["outputs"] + cost["temporary"])
    assert 0.85 < share < (2.2 if name == "lstm" else 1.0)


@every_model
def test_opened_fusions_are_the_same_work(name: str) -> None:
    kept, opened = load(DATA / f"{name}.hlo.xz"), load(f"{DATA}/{name}.hlo.xz#fusions=open")
    assert opened.num_ops > kept.num_ops and "fusion" not in opened.kind
    assert int(opened.flops.sum()) == int(kept.flops.sum())
    assert bytes_of(opened, INPUT) == bytes_of(kept, INPUT)
    assert bytes_of(opened, OUTPUT) == pytest.approx(bytes_of(kept, OUTPUT), rel=0.5)


@every_model
def test_nothing_dangles(name: str) -> None:
    """What is read is given or made before; of what an op makes something is read or returned."""
    g = load(DATA / f"{name}.hlo.xz")
    for op in range(g.num_ops):
        for tensor in g.reads_of(op):
            maker = g.producer[tensor]
            assert maker < op and (maker >= 0 or g.role[tensor] != 0)
        used = [len(g.readers_of(t)) > 0 or g.role[t] in (OUTPUT, STATE) for t in g.makes_of(op)]
        assert any(used), g.op_name[op]


@pytest.mark.parametrize("name", ("mlp", "lstm"))
def test_a_proto_is_the_same_program_as_its_text(name: str) -> None:
    assert load(DATA / f"{name}.pb.xz").digest == load(DATA / f"{name}.hlo.xz").digest


def test_stablehlo_before_xla_saw_it() -> None:
    g = load(DATA / "mlp.mlir")
    products = sum(int(g.flops[op]) for op in range(g.num_ops) if g.kind[op] == "dot")
    assert products == 2 * 32 * (64 * 128 * 2 + 128 * 128 * 3 + 128 * 10 * 3)
    assert int(g.flops.sum()) == pytest.approx(COSTS["mlp"]["flops"], rel=0.01)
    assert bytes_of(g, INPUT) == COSTS["mlp"]["arguments"] and bytes_of(g, OUTPUT) > 0


def test_stablehlo_with_a_loop() -> None:
    text = """module @jit_f {
  func.func public @main(%arg0: tensor<4x4xf32>, %arg1: tensor<4x4xf32>) -> tensor<4x4xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0:2 = stablehlo.while(%iterArg = %c, %iterArg_0 = %arg0) : tensor<i32>, tensor<4x4xf32>
     cond {
      %c_1 = stablehlo.constant dense<7> : tensor<i32>
      %1 = stablehlo.compare LT, %iterArg, %c_1, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.dot_general %iterArg_0, %arg1, contracting_dims = [1] x [0] : (TYPE, TYPE) -> TYPE
      %c_1 = stablehlo.constant dense<1> : tensor<i32>
      %2 = stablehlo.add %iterArg, %c_1 : tensor<i32>
      stablehlo.return %2, %1 : tensor<i32>, tensor<4x4xf32>
    }
    %3 = stablehlo.tanh %0#1 : tensor<4x4xf32>
    return %3 : tensor<4x4xf32>
  }
}
"""
    g = graph_of(parse(text.replace("TYPE", "tensor<4x4xf32>").encode(), "loop.mlir"))
    assert [kind for kind in g.kind] == ["while", "tanh"]
    assert int(g.flops[0]) == 7 * (2 * 4 * 4 * 4 + 1 + 1) and int(g.flops[1]) == 16


# By hand


def test_small_program_by_hand() -> None:
    g = graph()
    assert g.op_name == ("d", "f", "loop", "total")
    flops = [2 * 8 * 16 * 4, 2 * 32, 5 * (32 + 1 + 1), 31]
    assert list(map(int, g.flops)) == flops
    assert (g.scope[0], g.source[0]) == ("layer", "net.py:7")
    assert bytes_of(g, OUTPUT) == 4 + 8 * 4 * 4


def test_opened_fusion_by_hand() -> None:
    g = graph(fusions="open")
    assert [name for name in g.op_name if name.startswith("f/")] == ["f/e", "f/m"]
    assert int(g.bytes_moved[named(g, "f/m")]) == 3 * 128


@pytest.mark.filterwarnings("ignore:.*does not say how often")
def test_rounds_of_a_loop() -> None:
    given = SMALL.replace("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"9"}}')
    unknown = SMALL.replace("direction=LT", "direction=NE")
    rounds = {9: graph(given), 5: graph(), 1: graph(unknown), 3: graph(unknown, trips=3)}
    for trips, g in rounds.items():
        assert int(g.flops[named(g, "loop")]) == trips * 34
    with pytest.warns(UserWarning, match="loop does not say how often it runs"):
        graph(unknown)


def test_the_order_of_the_text_is_the_order_of_the_ops() -> None:
    lines = [
        "HloModule m, is_scheduled=true",
        "ENTRY %e (x: f32[4]) -> (f32[4], f32[4]) {",
        "  %x = f32[4] parameter(0)",
    ]
    calls = [f"  %{name} = f32[4] {name}(%x)" for name in ("tanh", "exponential", "sine", "cosine")]
    for seed in range(3):
        order = random.Random(seed).sample(calls, len(calls))
        text = "\n".join([*lines, *order, "  ROOT %t = (f32[4], f32[4]) tuple(%tanh, %sine)", "}"])
        assert list(graph(text).op_name) == [call.split()[0][1:] for call in order]


def test_a_donated_argument_is_overwritten_after_all_have_read_it() -> None:
    text = """HloModule m, input_output_alias={ {1}: (1, {}, may-alias) }

ENTRY %e (x: f32[4], w: f32[4]) -> (f32[4], f32[4]) {
  %x = f32[4] parameter(0)
  %w = f32[4] parameter(1)
  %y = f32[4] multiply(%x, %w)
  %g = f32[4] tanh(%x)
  %new = f32[4] subtract(%w, %g)
  ROOT %t = (f32[4], f32[4]) tuple(%y, %new)
}
"""
    g = graph(text)
    new = g.makes_of(named(g, "new"))[0]
    assert g.tensor_name[g.alias_of[new]] == "w" and g.role[new] == STATE
    assert list(g.after_of(named(g, "new"))) == [named(g, "y")]


@pytest.mark.parametrize(
    ("window", "labels", "made", "pairs"),
    [
        ("size=3", "b0f_0io->b0f", 8, 3 * 6),
        ("size=3 pad=1_1", "b0f_0io->b0f", 8, 3 * 8 - 2),
        ("size=3 stride=2", "b0f_0io->b0f", 8, 3 * 3),
        ("size=3 pad=1_1 lhs_dilate=2", "b0f_0io->b0f", 8, None),
        ("size=3 rhs_dilate=2", "b0f_0io->b0f", 8, 3 * 4),
    ],
)
def test_convolutions_meet_what_is_there(window: str, labels: str, made: int, pairs: int | None) -> None:
    """Counted again by walking over every output and every place of the window."""
    facts = {key: value for key, _, value in (part.partition("=") for part in window.split())}
    size, stride = int(facts["size"]), int(facts.get("stride", 1))
    low, high = map(int, facts.get("pad", "0_0").split("_"))
    hole, gap = int(facts.get("lhs_dilate", 1)), int(facts.get("rhs_dilate", 1))
    length = (8 - 1) * hole + 1
    out = (length + low + high - ((size - 1) * gap + 1)) // stride + 1
    counted = 0
    for place in range(out):
        for tap in range(size):
            at = place * stride + tap * gap - low
            counted += 0 <= at < length and at % hole == 0
    assert pairs is None or counted == pairs
    text = f"""HloModule m
ENTRY %e (x: f32[2,8,5], w: f32[{size},5,6]) -> f32[2,{out},6] {{
  %x = f32[2,8,5] parameter(0)
  %w = f32[{size},5,6] parameter(1)
  ROOT %c = f32[2,{out},6] convolution(%x, %w), window={{{window}}}, dim_labels={labels}
}}
"""
    assert int(graph(text).flops[0]) == 2 * counted * 2 * 5 * 6


# Large, wrong and hostile


def long_module(count: int) -> str:
    lines = ["HloModule long, is_scheduled=true", "", "ENTRY %e (x: f32[128,128]) -> f32[128,128] {"]
    lines += ["  %v0 = f32[128,128]{1,0} parameter(0)"]
    for i in range(1, count + 1):
        lines.append(
            f"  %v{i} = f32[128,128]{{1,0}} dot(%v{i - 1}, %v{max(0, i - 7)}), lhs_contracting_dims={{1}}, "
            f'rhs_contracting_dims={{0}}, metadata={{op_name="jit(f)/layer{i % 50}/dot" stack_frame_id={i % 9}}}'
        )
    return "\n".join([*lines, f"  ROOT %r = f32[128,128]{{1,0}} copy(%v{count})", "}"])


def test_fifty_thousand_instructions() -> None:
    assert graph(long_module(50_000)).num_ops == 50_001


def test_twice_the_instructions_are_twice_the_work() -> None:
    short, long = long_module(1_000), long_module(2_000)
    graph(short)  # what is done once in a process
    once, twice = calls_in(lambda: graph(short)), calls_in(lambda: graph(long))
    assert 1.8 * once < twice < 2.1 * once


@pytest.mark.parametrize(
    ("change", "kind", "word"),
    [
        (("%d = f32[8,4]{1,0} dot(%x, %w)", "%d = f32[8,4]{1,0} dot(%x, %gone)"), ImportFailed, "gone"),
        (("calls=%fused", "calls=%absent"), ImportFailed, "absent"),
        (("f32[8,16]{1,0} parameter(0)", "f99[8,16] parameter(0)"), UnreadableFile, "f99"),
        (("ENTRY %main", "%main"), UnreadableFile, "ENTRY"),
        (("HloModule small", "Module small"), UnreadableFile, "HloModule"),
        (("index=1\n  %one", "index=7\n  %one"), None, ""),
        (("tanh(%x)", "tanh(%x"), UnreadableFile, "line 28"),
        (("body=%body", "body=%cond"), None, ""),
        (("%e = f32[8,4]{1,0} exponential(%p)", "%e = f32[8,4]{1,0} fusion(%p), calls=%fused"), ImportFailed, "itself"),
        (("f32[8,16]{1,0} parameter(0)", "f32[999999999999,999999999999] parameter(0)"), LoadmasterError, "large"),
    ],
)
def test_wrong_programs_say_what_and_where(change: tuple[str, str], kind: type[Exception] | None, word: str) -> None:
    text = SMALL.replace(*change)
    assert text != SMALL
    if kind is None:
        graph(text)
        return
    with pytest.raises(kind, match=word):
        graph(text)


def test_wrong_settings(tmp_path: Path) -> None:
    path = tmp_path / "small.hlo"
    path.write_text(SMALL)
    assert load(f"{path}#trips=2").num_ops == 4
    for part, kind in (("fusions=some", InvalidSetting), ("fusion=open", UnknownName), ("trips=x", InvalidSetting)):
        with pytest.raises(kind):
            load(f"{path}#{part}")


def test_files_that_are_nothing(tmp_path: Path) -> None:
    for name, raw in {
        "a.hlo": b"",
        "b.hlo": b"\0\1\2",
        "c.hlo.xz": b"x",
        "d.mlir": b"hello",
        "e.hlo": "é".encode("latin1"),
    }.items():
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(UnreadableFile):
            load(tmp_path / name)


def test_calls_that_double_are_bounded() -> None:
    """Thirty computations that each call the one before twice would be a thousand million ops."""
    parts = ["%c0 (p: f32[4]) -> f32[4] {\n  %p = f32[4] parameter(0)\n  ROOT %r = f32[4] tanh(%p)\n}"]
    for i in range(1, 31):
        parts.append(
            f"%c{i} (p: f32[4]) -> f32[4] {{\n  %p = f32[4] parameter(0)\n  %a = f32[4] call(%p), to_apply=%c{i - 1}\n"
            f"  ROOT %r = f32[4] call(%a), to_apply=%c{i - 1}\n}}"
        )
    entry = (
        "ENTRY %e (p: f32[4]) -> f32[4] {\n  %p = f32[4] parameter(0)\n  ROOT %r = f32[4] call(%p), to_apply=%c30\n}"
    )
    with pytest.raises(ImportFailed, match="more than"):
        graph("\n\n".join(["HloModule m", *parts, entry]))
