"""The verbs of the command line, from model to exit code."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from loadmaster import Cluster, GraphBuilder, __version__, load, price, simulate
from loadmaster.cli.verbs import app
from loadmaster.files import load_plan, save_graph
from tests.end_to_end import warm
from tests.end_to_end.conftest import command, parsed, write_cluster, write_model, write_onnx

VERBS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
QUICK = ("--simulations", "20")
PLAN_KEYS = {
    "graph": dict,
    "cluster": str,
    "method": str,
    "seed": int,
    "objective": str,
    "fits": bool,
    "over_bytes": int,
    "step_ns": int,
    "peak_bytes": list,
    "lower_bound": int,
    "gap": float,
    "simulations": int,
    "seconds": float,
    "kernels": int,
    "baselines": dict,
}


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def answer(*words: str) -> Any:
    """The JSON of a verb that succeeds."""
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return parsed(result.stdout)


def refusal(*words: str, code: int = 1) -> Any:
    """The error of a verb that fails, the same on stderr and as JSON on stdout."""
    result = run(*words, "--json")
    assert result.exit_code == code, result.output
    error = parsed(result.stdout)["error"]
    assert error["exit_code"] == code
    assert f"error: {error['what']}" in result.stderr and error["type"] not in result.stderr
    assert "Traceback" not in result.output
    return error


# plan


def test_plan_json_has_what_it_promises(model: str) -> None:
    found = answer("plan", model, "--on", "2xp100-pcie", *QUICK)
    for key, kind in PLAN_KEYS.items():
        assert isinstance(found[key], kind), key
    graph = load(model)
    assert found["graph"]["digest"] == graph.digest
    assert (found["graph"]["name"], found["graph"]["ops"], found["graph"]["tensors"]) == (
        "lanes",
        13,
        graph.num_tensors,
    )
    assert found["cluster"] == "2xp100-pcie"
    assert found["fits"] is True and found["over_bytes"] == 0
    assert len(found["peak_bytes"]) == 2
    assert set(found["baselines"]) == {"one-device", "expert"}
    for baseline in found["baselines"].values():
        assert set(baseline) >= {"step_ns", "peak_bytes", "fits"}
        assert baseline["step_ns"] >= found["step_ns"]
    assert found["gap"] == pytest.approx(found["step_ns"] / found["lower_bound"] - 1)


def test_one_device_takes_the_sum_of_its_ops(model: str) -> None:
    found = answer("plan", model, "--on", "2xp100-pcie", "--method", "one-device")
    problem = price(load(model), "2xp100-pcie")
    assert found["step_ns"] == int(problem.op_ns[:, 0].sum())
    assert found["simulations"] == 1


def test_saved_plan_simulates_to_the_same_numbers(model: str, folder: Path) -> None:
    made = answer("plan", model, "--on", "2xp100-pcie", "--save", "plan.json", *QUICK)
    again = answer("tools", "simulate", model, "--on", "2xp100-pcie", "--plan", "plan.json")
    for key in ("step_ns", "peak_bytes", "fits", "over_bytes", "lower_bound", "kernels", "graph", "cluster"):
        assert made[key] == again[key], key
    line = simulate(price(load(model), "2xp100-pcie"), load_plan(folder / "plan.json"))
    assert line.step_ns == made["step_ns"]


@pytest.mark.parametrize("spec", ["random", "best-of", "anneal"])
def test_simulations_alone_give_the_same_answer_every_time(model: str, spec: str) -> None:
    one, two = (answer("plan", model, "--method", spec, "--seed", "3", *QUICK) for _ in range(2))
    del one["seconds"], two["seconds"]
    assert one == two
    assert one["seed"] == 3
    assert one["simulations"] <= 20


def test_greedy_fusion_makes_fewer_kernels(folder: Path) -> None:
    """Two products, each with three light ops behind it."""
    graph = GraphBuilder("light")
    made = graph.tensor(4 << 20, "input")
    for layer in range(2):
        weight = graph.tensor(16 << 20, "weight")
        for kind in ("mm", "add", "relu", "mul"):
            read, made = made, graph.tensor(4 << 20)
            graph.op(f"{kind}{layer}", kind, [read, weight] if kind == "mm" else [read], [made], flops=10**6)
    save_graph(graph.build(), folder / "light.json")
    plain = answer("plan", "light.json", "--method", "heft", *QUICK)
    fused = answer("plan", "light.json", "--method", "heft", "--fusion", "greedy", *QUICK)
    assert plain["kernels"] == 8
    assert fused["kernels"] == 4
    assert fused["method"] == "greedy-fusion:inner=[heft]"


def test_fusion_goes_with_the_default_method(model: str) -> None:
    assert answer("plan", model, "--fusion", "greedy", *QUICK)["fits"]


def test_objective_peak_memory_lowers_the_peak(model: str) -> None:
    found = answer("plan", model, "--objective", "peak-memory", *QUICK)
    assert found["objective"] == "peak-memory"
    assert max(found["peak_bytes"]) <= max(found["baselines"]["one-device"]["peak_bytes"])
    assert found["lower_bound"] <= max(found["peak_bytes"])


def test_without_a_cluster_it_plans_for_this_machine(model: str, folder: Path) -> None:
    result = run("plan", model, *QUICK, "--save", "plan.json")
    assert result.exit_code == 0
    assert "this-machine" in result.stdout and "--on" in result.stdout
    described = json.loads((folder / "plan.json").read_text())["on"]
    host = next(device for device in described["devices"] if device["kind"] == "cpu")
    pages = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    assert host["memory_bytes"] == pytest.approx(int(pages.split()[1]) * 1024, rel=0.1)
    assert run("explain", "plan.json", "--model", model, "--seconds", "0.1").exit_code == 0


def test_cluster_from_a_file(model: str, folder: Path) -> None:
    write_cluster(folder / "mine.json")
    by_file, by_name = (answer("plan", model, "--on", on, *QUICK) for on in ("mine.json", "2xp100-pcie"))
    assert by_file["step_ns"] == by_name["step_ns"]
    assert by_file["cluster_digest"] == by_name["cluster_digest"] == Cluster.preset("2xp100-pcie").digest


def test_onnx_file(folder: Path) -> None:
    write_onnx(folder / "squeezenet.onnx")
    found = answer("plan", "squeezenet.onnx", "--method", "heft", *QUICK)
    assert found["graph"]["ops"] > 60


def test_a_function_that_returns_a_torch_module(folder: Path) -> None:
    pytest.importorskip("torch")
    source = "import torch\ndef build():\n    return torch.nn.Linear(8, 4), (torch.zeros(2, 8),)\n"
    (folder / "my_model.py").write_text(source)
    found = answer("plan", "my_model:build", "--method", "heft", *QUICK)
    assert found["graph"]["ops"] > 3
    assert found["fits"]


# What does not fit


def test_a_plan_that_does_not_fit_is_no_success(model: str, folder: Path) -> None:
    words = ("plan", model, "--memory-limit", "30MiB", "--save", "plan.json", *QUICK)
    error = refusal(*words, code=3)
    document = parsed(run(*words, "--json").stdout)
    assert document["fits"] is False and document["over_bytes"] > 0
    worst = max(document["peak_bytes"]) - 30 * 2**20
    assert 0 < worst <= document["over_bytes"]
    assert f"over by {worst / 2**20:.1f} MiB" in error["what"]
    assert "--memory-limit" in error["fix"]
    assert not (folder / "plan.json").exists()


def test_the_memory_it_asks_for_is_enough(model: str) -> None:
    on = ("--on", "2xa100-nvlink", "--method", "heft")
    error = refusal("plan", model, "--memory-limit", "30MiB", *on, code=3)
    need = error["fix"].rpartition("--memory-limit ")[2].rstrip(")")
    found = answer("plan", model, "--memory-limit", need, *on)
    assert found["fits"]
    assert max(found["peak_bytes"]) == int(need.removesuffix("B"))


def test_a_saved_plan_that_no_longer_fits(model: str) -> None:
    answer("plan", model, "--on", "2xp100-pcie", "--save", "plan.json", *QUICK)
    refusal("tools", "simulate", model, "--on", "2xp100-pcie", "--plan", "plan.json", "--memory-limit", "10MiB", code=3)


def test_the_table_says_no_where_a_plan_does_not_fit(model: str) -> None:
    result = run("plan", model, "--memory-limit", "30MiB", *QUICK)
    assert result.exit_code == 3
    assert "does not fit" in result.stdout and "it fits" not in result.stdout
    assert "error: the plan of" in result.stderr


def test_compare_fails_only_when_nothing_fits(model: str) -> None:
    on = ("--on", "2xa100-nvlink")
    peaks = {
        row["method"]: max(row["peak_bytes"])
        for row in answer("compare", model, *on, "--method", "one-device,expert", *QUICK)["methods"]
    }
    assert peaks["expert"] < peaks["one-device"]
    between = f"{(peaks['expert'] + peaks['one-device']) // 2}B"
    some = answer("compare", model, *on, "--method", "one-device,expert", "--memory-limit", between, *QUICK)
    assert [row["fits"] for row in some["methods"]] == [False, True]
    assert some["best"] == "expert"
    refusal("compare", model, *on, "--method", "one-device", "--memory-limit", between, *QUICK, code=3)


# simulate


def test_a_plan_for_another_graph_or_cluster_is_refused_by_digest(model: str, folder: Path) -> None:
    made = answer("plan", model, "--on", "2xp100-pcie", "--save", "plan.json", *QUICK)
    error = refusal("tools", "simulate", model, "--on", "2xk80", "--plan", "plan.json")
    assert error["type"] == "InvalidPlan" and made["cluster_digest"] in error["what"]
    data = json.loads((folder / model).read_text())
    data["ops"][0]["flops"] += 1
    (folder / "other.json").write_text(json.dumps(data))
    error = refusal("tools", "simulate", "other.json", "--on", "2xp100-pcie", "--plan", "plan.json")
    assert error["type"] == "InvalidPlan" and made["graph"]["digest"] in error["what"]


def test_a_damaged_plan_is_refused(model: str, folder: Path) -> None:
    answer("plan", model, "--on", "2xp100-pcie", "--save", "plan.json", *QUICK)
    whole = (folder / "plan.json").read_text()
    for text in ("", "[]", whole[: len(whole) // 2], whole.replace('"device": 0', '"device": 9')):
        (folder / "plan.json").write_text(text)
        refusal("tools", "simulate", model, "--on", "2xp100-pcie", "--plan", "plan.json")


# compare, inspect, zoo, list


def test_compare_gives_every_method_the_same_budget(model: str) -> None:
    found = answer("compare", model, "--method", "one-device,expert,best-of:of=[heft,etf],random:samples=500", *QUICK)
    names = [row["method"] for row in found["methods"]]
    assert names == ["one-device", "expert", "best-of:of=[heft,etf]", "random:samples=500"]
    assert all(row["simulations"] <= 20 for row in found["methods"])
    assert found["best"] == min(found["methods"], key=lambda row: row["step_ns"])["method"]


def test_compare_saves_the_best_plan(model: str) -> None:
    found = answer(
        "compare", model, "--on", "2xp100-pcie", "--method", "one-device,heft", "--save", "best.json", *QUICK
    )
    again = answer("tools", "simulate", model, "--on", "2xp100-pcie", "--plan", "best.json")
    assert again["step_ns"] == min(row["step_ns"] for row in found["methods"])


def test_compare_table_has_a_line_for_each_method(model: str) -> None:
    result = run("compare", model, *QUICK)
    lines = [line.split()[0] for line in result.stdout.splitlines() if line.strip()]
    for name in ("one-device", "expert", "heft", "etf", "greedy-fusion"):
        assert name in lines


def test_inspect(model: str) -> None:
    found = answer("tools", "inspect", model)
    assert (found["ops"], found["views"]) == (13, 0)
    assert found["flops"] == 12 * 2 * 10**10 + 10**6
    assert found["bytes_by_role"] == {
        "activation": 12 * 4 << 20,
        "weight": 4 * 16 << 20,
        "input": 4 << 20,
        "output": 4 << 20,
        "state": 0,
    }
    assert found["parallelism"] == pytest.approx(found["work_ns"] / found["critical_path_ns"])
    assert found["critical_path_ops"] == 5
    text = run("tools", "inspect", model).stdout
    assert "critical path" in text and "largest tensors" in text


def test_zoo_lists_what_can_be_planned() -> None:
    rows = answer("zoo")["models"]
    names = {row["name"] for row in rows}
    for name in ("rnnlm-2", "gnmt-4", "gnmt-8", "transformer-xl-2", "inception-v3-b32", "gpt2"):
        assert f"{name}/train" in names
    assert "gnmt-4/train" in run("zoo").stdout


def test_zoo_capture_writes_a_graph_that_loads(folder: Path) -> None:
    pytest.importorskip("torch")
    found = answer("zoo", "capture", "transformer-xl-2", "--out", "here")
    assert load(found["file"]).digest == found["graph"]["digest"] == load("zoo:transformer-xl-2").digest
    assert Path(found["file"]).parent == Path("here")


def test_list_methods_and_clusters() -> None:
    methods = {row["name"]: row for row in answer("tools", "list", "methods")["methods"]}
    assert {"one-device", "round-robin", "random", "expert", "heft", "etf", "greedy-fusion", "best-of"} <= set(methods)
    assert all(row["summary"] for row in methods.values())
    clusters = {row["name"]: row for row in answer("tools", "list", "clusters")["clusters"]}
    for kind in ("p100-pcie", "k80", "v100-nvlink", "a100-nvlink", "h100-nvswitch", "h200", "cpu"):
        assert f"Nx{kind}" in clusters
    assert clusters["regal"]["link_bytes_per_s"] is None
    assert "best-of" in run("tools", "list", "methods").stdout
    assert "Nxk80" in run("tools", "list", "clusters").stdout


# Mistakes


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("plan", "nothing.json"), "nothing.json"),
        (("plan", "zoo:gnmt-44"), "gnmt-4"),
        (("plan", "model.json", "--method", "hefd"), "heft"),
        (("plan", "model.json", "--method", "anneal:warm=1"), "temperature"),
        (("plan", "model.json", "--on", "4xp101"), "p100-pcie"),
        (("plan", "model.json", "--on", "nowhere.json"), "nowhere.json"),
        (("plan", "model.json", "--on", "4090,3090"), "4090+3090"),
        (("plan", "model"), "model.json?"),
        (("plan", "modell.json"), "model.json?"),
        (("plan", "gnmt-4"), "zoo:gnmt-4"),
        (("plan", "model.json", "--memory-limit", "16"), "16GiB"),
        (("plan", "model.json", "--memory-limit", "16gigs"), "16GiB"),
        (("plan", "model.json", "--seconds", "0"), "seconds"),
        (("plan", "model.json", "--simulations", "0"), "simulations"),
        (("plan", "model.json", "--save", "no/such/folder/plan.json"), "folder"),
        (("compare", "model.json", "--method", ","), "--method"),
        (("tools", "simulate", "model.json", "--on", "2xk80", "--plan", "none.json"), "none.json"),
        (("tools", "inspect", "no.such.module:build"), "no"),
        (("zoo", "capture", "gnmt-44"), "gnmt-4"),
    ],
)
def test_mistakes_are_named_with_a_way_out(folder: Path, words: tuple[str, ...], says: str) -> None:
    write_model(folder / "model.json")
    error = refusal(*words)
    assert says in f"{error['what']} {error['where']} {error['fix']}"
    assert error["fix"]


@pytest.mark.parametrize("text", ["", "{", "null", "[1, 2]", '{"schema": "loadmaster.graph/1"}', "NaN", "[" * 100_000])
def test_broken_files_are_errors_of_ours(folder: Path, text: str) -> None:
    (folder / "broken.json").write_text(text)
    assert refusal("plan", "broken.json")["type"] in {"InvalidGraph", "UnreadableFile"}
    refusal("plan", "zoo:transformer-xl-2", "--on", "broken.json")


@pytest.mark.parametrize(
    "words",
    [
        ("plan",),
        ("fly", "model.json"),
        ("plan", "model.json", "--fast"),
        ("plan", "model.json", "--objective", "speed"),
        ("plan", "model.json", "--seconds", "ten"),
        ("plan", "model.json", "--seed", "-1"),
        ("tools", "simulate", "model.json"),
        ("tools", "list", "models"),
    ],
)
def test_wrong_usage_is_exit_2(words: tuple[str, ...]) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_debug_shows_the_traceback(folder: Path) -> None:
    plain, debugged = run("plan", "nothing.json"), run("plan", "nothing.json", "--debug")
    assert plain.exit_code == debugged.exit_code == 1
    assert "Traceback" not in plain.stderr
    assert "Traceback" in debugged.stderr and "nothing.json" in debugged.stderr


def test_a_bug_of_ours_is_told_without_a_traceback(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("loadmaster.cli.words.problem_of", broken)
    result = run("plan", model)
    assert result.exit_code == 1
    assert "ZeroDivisionError" in result.stderr and "--debug" in result.stderr
    assert "Traceback" not in result.stderr


# As a program


def test_piped_output_is_plain_and_json_is_alone_on_stdout(model: str) -> None:
    table = command("plan", model, "--on", "2xp100-pcie", "--method", "heft")
    assert table.returncode == 0
    assert "\x1b" not in table.stdout + table.stderr
    assert "from the best" in table.stdout and "it fits" in table.stdout
    assert table.stderr == ""
    document = command("plan", model, "--method", "heft", "--json")
    assert parsed(document.stdout)["fits"]
    assert document.stderr == ""


def test_exit_codes_of_the_program(model: str) -> None:
    assert command("plan", model, "--method", "heft", "--memory-limit", "1MiB").returncode == 3
    assert warm.run("plan", "nothing.json").returncode == 1
    assert warm.run("plan").returncode == 2


def test_no_color_is_honoured(model: str) -> None:
    coloured = warm.run("plan", model, "--method", "heft", FORCE_COLOR="1", TERM="xterm-256color")
    plain = warm.run("plan", model, "--method", "heft", FORCE_COLOR="1", TERM="xterm-256color", NO_COLOR="1")
    green = "\x1b[32m"
    assert green in coloured.stdout
    assert green not in plain.stdout


def test_progress_is_shown_on_a_terminal_and_only_there(model: str) -> None:
    ours, theirs = pty.openpty()
    program = [
        sys.executable,
        "-m",
        "loadmaster.cli.verbs",
        "plan",
        model,
        "--method",
        "random:samples=100000",
        "--seconds",
        "2",
    ]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen([*program, "--json"], stdout=subprocess.PIPE, stderr=theirs, env=env) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
        assert process.stdout is not None
        assert parsed(process.stdout.read().decode())["fits"]
    os.close(ours)
    assert b"simulations" in shown and b"best" in shown


def test_version() -> None:
    assert run("--version").stdout.strip() == f"loadmaster {__version__}"


HELP = "import sys; from loadmaster.cli.verbs import app; app(['--help'], standalone_mode=False); "


def test_help_imports_neither_numba_nor_torch() -> None:
    heavy = ("numba", "torch", "numpy", "scipy", "onnx")
    code = HELP + f"print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "plan" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_packing_imports_neither_reports_nor_torch(tmp_path: Path) -> None:
    (tmp_path / "lives.csv").write_text("id,lower,upper,size\na,0,3,4\nb,1,5,4\n")
    words = ["lab", "pack", str(tmp_path / "lives.csv"), "--capacity", "8", "--out", str(tmp_path / "offsets.csv")]
    code = f"import sys; from loadmaster.cli.verbs import app; app({words}, standalone_mode=False); "
    code += "print([name for name in ('rich', 'torch', 'loadmaster.methods') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert (tmp_path / "offsets.csv").read_text().splitlines() == ["id,offset", "a,0", "b,4"]


def test_every_verb_has_json_and_debug() -> None:
    verbs = {(name,): verb for name, verb in VERBS.items() if not hasattr(verb, "commands")}
    verbs |= {(name, "", one): verb for name in ("tools", "lab", "zoo") for one, verb in VERBS[name].commands.items()}
    assert len(verbs) > 20
    for words, verb in verbs.items():
        names = {name for param in verb.params for name in param.opts}
        assert {"--json", "--debug"} <= names, words


def test_help_shows_seven_verbs_and_three_groups() -> None:
    shown = run("--help").stdout.partition("Verbs:")[2]
    found = re.findall(r"^  (\w+)  ", shown, re.MULTILINE)
    assert found == ["plan", "compare", "explain", "run", "export", "fits", "measure", "zoo", "tools", "lab"]
    assert set(found) == set(VERBS)


def test_help_of_plan_is_a_dozen_options_and_help_all_has_every_one() -> None:
    short, everything = (run("plan", word).stdout for word in ("--help", "--help-all"))
    shown = set(re.findall(r"^  (--[\w-]+)", short, re.MULTILINE)) - {"--help", "--help-all"}
    assert 10 <= len(shown) <= 13 and {"--on", "--save", "--memory-limit"} <= shown
    for param in VERBS["plan"].params:
        assert param.opts[0].lstrip("-").replace("_", "-") in everything.lower().replace("_", "-"), param.name


def test_warnings_of_ours_are_a_line_and_log_lines_of_others_are_not_shown(folder: Path) -> None:
    code = (
        "import logging, warnings; from loadmaster.cli.guarding import quieten; quieten(); "
        "logging.getLogger('torch.export').warning('theirs'); "
        "warnings.warn_explicit('theirs', UserWarning, '/lib/torch/export.py', 1); "
        "warnings.warn_explicit('ours', UserWarning, '/lib/loadmaster/importers/onnx/model.py', 1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "warning: ours\n")


def test_zoo_capture_writes_into_the_current_folder_by_default() -> None:
    from inspect import signature

    from loadmaster.cli.zoo import zoo_capture

    assert signature(zoo_capture).parameters["out"].default == Path(".")


# Plans found before


def test_a_plan_begins_from_earlier_ones_and_says_so(model: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMASTER_PLANS", str(folder / "kept"))
    assert "no plans are kept" in run("tools", "list", "plans").stdout
    timed = ("plan", model, "--on", "2xp100-pcie", "--seconds", "0.2")
    first = answer(*timed)
    assert "started_from" not in first
    again = answer("plan", model, "--on", "3xp100-pcie", "--seconds", "0.2")
    assert again["started_from"] == ["lanes on 2xp100-pcie"]
    assert "warm-started from earlier plans: lanes on" in run(*timed).stdout
    kept = answer("tools", "list", "plans")
    assert {row["cluster"] for row in kept["plans"]} == {"2xp100-pcie", "3xp100-pcie"}
    assert "2 plans" in run("tools", "list", "plans").stdout
    assert answer("tools", "forget") == {"removed": 2}


def test_answers_that_must_not_depend_on_the_past_do_not(
    model: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADMASTER_PLANS", str(folder / "kept"))
    on = ("plan", model, "--on", "2xp100-pcie")
    answer(*on, "--seconds", "0.2")
    for words in (QUICK, ("--seconds", "0.2", "--method", "heft"), ("--seconds", "0.2", "--no-experience")):
        assert "started_from" not in answer(*on, *words)
    assert answer(*on, *QUICK, "--experience")["started_from"] == ["lanes on 2xp100-pcie"]


def test_like_begins_from_the_plan_of_a_file(model: str, folder: Path) -> None:
    answer("plan", model, "--on", "2xp100-pcie", *QUICK, "--save", "plan.json")
    begun = answer("plan", model, "--on", "4xp100-pcie", *QUICK, "--like", "plan.json")
    assert begun["started_from"] == ["plan.json"]
    error = refusal("plan", model, "--on", "4xp100-pcie", *QUICK, "--like", model)
    assert error["type"] == "InvalidPlan"
    error = refusal("plan", model, "--on", "2xp100-pcie", *QUICK, "--like", "plan.json", "--granularity", "module")
    assert error["type"] == "InvalidSetting"
