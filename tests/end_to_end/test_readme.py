"""Every command and every piece of Python in the documents is run.

Commands stand in code blocks marked `sh` or are indented, Python stands in blocks marked `python`; all of one document
run in order in one fresh folder with a few files a reader is taken to have; one that another of the document repeats
and writes a file besides is run as that one. To keep this short, `--seconds` becomes 0.2 seconds, `plan`, `compare`
and `explain` without it get that too, and `tradeoff` and `fits` 20 simulations a search; a
benchmark is run on its first graph for 0.2 seconds or 40 simulations, with its first method and those that no benchmark
before it has run; the settings of the others are read. What trains is given counts of a few, on one core. Of `make
TARGET` it is checked that make knows the target; the loadmaster commands in it are run in the last document that names
it. Lines in OUTSIDE are not run: they change the machine. What needs a package
that is not installed here is left out, with what reads the files it would have written, and the test says so in the
end: it is skipped.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import pytest

from loadmaster.catalog import methods
from loadmaster.catalog.specs import make_method
from loadmaster.cli.words import split_specs
from loadmaster.errors import MissingExtra
from loadmaster.files import save_graphs
from loadmaster.zoo.synthetic import generate
from tests.end_to_end import warm
from tests.end_to_end.conftest import ROOT, command, write_cluster, write_config, write_model, write_onnx
from tests.gguf_files import write_gguf

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
OUTSIDE = (
    "pip install",
    "pip wheel",
    "python3 -m venv",
    "git clone",
    "source ",
    "cd ",
)
SECONDS = "0.2"
NEED_SHARED = ("loadmaster lab bench regal",)  # it reads a corpus


def blocks(path: Path, *marks: str) -> list[str]:
    found = re.findall(r"^```(\w+)\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)
    return [text for mark, text in found if mark in marks]


def commands(path: Path) -> list[str]:
    """One a line; a backslash at the end joins the next. Indented ones first: they stand without a fence."""
    fenced = "\n".join(blocks(path, "sh", "bash", "shell", "console"))
    plain = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL).replace("\\\n", " ")
    lines = re.findall(r"^    (?:\$ )?((?:loadmaster|make|python) .*)$", plain, re.MULTILINE)
    lines += fenced.replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ").strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def write_profiles(folder: Path) -> None:
    """The small examples of other planners' formats, as docs/formats.md has them."""
    found = [text for text in blocks(ROOT / "docs/formats.md", "text")]
    (folder / "msr.json").write_text(next(text for text in found if "maxFPGAs" in text))
    (folder / "graph.txt").write_text(next(text for text in found if text.startswith("node1 -- ")))


def test_a_command_that_only_writes_besides_is_told_from_another() -> None:
    plan = "loadmaster plan a.json --on b"
    assert _runs_too(f"{plan} --save c.json --schedule d.csv", plan)
    assert not _runs_too(plan, plan) and not _runs_too(f"{plan} --microbatches 8", plan)
    assert not _runs_too(f"{plan}2 --save c.json", plan)


def test_indented_commands_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Text.\n\n    loadmaster plan a \\\n        --on b\n\n```sh\nloadmaster zoo --json\n```\n\n    no command\n"
    )
    assert [line.split() for line in commands(page)] == [
        ["loadmaster", "plan", "a", "--on", "b"],
        ["loadmaster", "zoo", "--json"],
    ]


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a reader is taken to have."""
    folder = tmp_path_factory.mktemp("files")
    write_model(folder / "model.json")
    write_cluster(folder / "cluster.json")
    write_onnx(folder / "model.onnx")
    write_config(folder / "llama-config")
    write_gguf(folder / "model.gguf", layers=4, width=256, inner=512, words=512)
    write_profiles(folder)
    (folder / "my_model.py").write_text(blocks(ROOT / "docs/start/first_plan.md", "python")[0])
    for name, seed in (("train", 0), ("valid", 1)):
        save_graphs(generate("layered", 4, seed, (65, 75)), folder / f"{name}.jsonl.xz")
    return folder


@pytest.fixture
def desk(files: Path, folder: Path) -> Path:
    shutil.copytree(files, folder, dirs_exist_ok=True)
    return folder


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if commands(path)], ids=lambda path: path.name)
def test_commands_run(path: Path, desk: Path) -> None:
    found = commands(path)
    shared = Path(os.environ.get("LOADMASTER_SHARED", ROOT.parent / "shared"))
    os.environ["LOADMASTER_SHARED"] = str(shared)
    absent = f"{shared} is not there (LOADMASTER_SHARED)"
    left_out = {line: absent for line in found if line.startswith(NEED_SHARED) and not shared.is_dir()}
    for line in found:
        if line not in left_out and not any(_runs_too(other, line) for other in found):
            without = _reads_of(line, left_out) or _run(line, path)
            left_out |= {line: without} if without else {}
    if left_out:
        pytest.skip(f"not run: {left_out}")


WRITING = {"--save", "--schedule", "--report", "--plot", "--out", "--trace"}  # options that only write a file besides


def _runs_too(line: str, other: str) -> bool:
    """Whether a command is the other one and writes a file besides: then running the first runs both."""
    rest = line.removeprefix(other).split()
    return line.startswith(f"{other} ") and len(rest) % 2 == 0 and WRITING.issuperset(rest[::2])


def _reads_of(line: str, left_out: Mapping[str, str]) -> str:
    """The file it names that a command which was left out would have written, in words; empty where there is none."""
    for other in left_out:
        words = shlex.split(other, comments=True)
        written = {word for option, word in pairwise(words) if option in WRITING}
        for word in written.intersection(shlex.split(line, comments=True)):
            return f"{word} was not written"
    return ""


def _missing(done: subprocess.CompletedProcess[str]) -> str:
    """Why it could not be run here: a package that is not installed. Empty where that is not the reason."""
    said = re.findall(r"needs the package '([\w.]+)', which is not|No module named '([\w.]+)'", done.stderr)
    names = [(one or other).partition(".")[0] for one, other in said] if done.returncode else []
    absent = [name for name in names if name != "loadmaster" and importlib.util.find_spec(name) is None]
    return f"{absent[0]} is not installed" if absent else ""


def _run(line: str, path: Path) -> str:
    """Runs it; in words, why it could not be run here, empty where it was."""
    if line.startswith(OUTSIDE):
        return ""
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        done = subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        if any(line in commands(later) for later in DOCUMENTS[DOCUMENTS.index(path) + 1 :]):
            return ""  # its commands are run there
        inner = done.stdout.replace("\\\n", " ").splitlines()
        return ", ".join(filter(None, (_run(one, path) for one in inner if one.startswith(".venv/bin/loadmaster "))))
    if words[0] == "python":
        return _ran(line, warm.run_script(*_short_script(words[1:])))
    assert words[0].rpartition("/")[2] == "loadmaster", f"no way to test '{line}'"
    if words[1:3] == ["lab", "train"]:
        return _train(words[1:])
    return _ran(line, warm.run(*_short(words[1:])))


def _ran(line: str, done: subprocess.CompletedProcess[str]) -> str:
    missing = _missing(done)
    assert done.returncode == 0 or missing, f"{line}: {done.stderr}"
    return missing


def _short_script(words: list[str]) -> list[str]:
    """A script of ours with small numbers."""
    words = [str(ROOT / words[0]), *words[1:]]
    fewer = {"--evaluations": "20", "--seconds": "0.2", "--limit": "1", "--seeds": "1", "--workers": "1"}
    for name, few in fewer.items():
        if name in words:
            words[words.index(name) + 1] = few
    return words


FEW = {"steps": 1, "graphs": 2, "samples": 2}
FEW |= {
    "evaluations": 40,
    "simulations": 40,
    "valid_graphs": 1,
    "valid_simulations": 40,
    "hidden": 16,
}


def _train(words: list[str]) -> str:
    """A run of a step or two; its weights are there in the end."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    from loadmaster.papers.training import settings_of

    own = {field.name for field in fields(settings_of(words[2]))}
    for name, count in FEW.items():
        words += ["--set", f"{name}={count}"] if name in own else []
    if "--workers" in words:
        words[words.index("--workers") + 1] = "1"
    else:
        words += ["--workers", "1"]
    if missing := _ran(shlex.join(words), warm.run(*words)):
        return missing
    out = Path(words[words.index("--out") + 1])
    made = "plans.zip" if words[2] == "plans" else f"{words[2]}.safetensors"
    assert (out / made).stat().st_size > 0 and (out / "card.json").stat().st_size > 0
    return ""


def _short(words: list[str]) -> list[str]:
    if words[:2] == ["lab", "bench"]:
        return _short_bench(words)
    if words[:2] == ["lab", "corpus"]:  # of hundreds of graphs
        return [*words, "--limit", "2"]
    if "tradeoff" in words[:2] or words[0] == "fits":  # of each of many searches
        words = [*words, "--simulations", "20"] if "--simulations" not in words else words
        words[words.index("--simulations") + 1] = "20"
    if words[0] not in ("plan", "compare", "explain") or "--simulations" in words:
        return words
    if "--seconds" in words:
        words[words.index("--seconds") + 1] = SECONDS
        return words
    return [*words, "--seconds", SECONDS]


TRIED: set[str] = set()  # names of the methods that some benchmark has run


def _short_bench(words: list[str]) -> list[str]:
    """On one graph with its first method and those that are new."""
    budget, short = ("--seconds", "0.2") if "--seconds" in words else ("--simulations", "40")
    words[words.index(budget) + 1] = short
    chosen = ["heft"]
    if "--method" in words:
        at = words.index("--method")
        chosen = []
        for spec in split_specs(words[at + 1]):
            if not chosen or spec.partition(":")[0] not in TRIED:
                chosen.append(spec)
            elif spec.partition(":")[0] in methods():  # peers are known to the benchmark alone
                make_method(spec)
            TRIED.add(spec.partition(":")[0])
        words = [*words[:at], *words[at + 2 :]]
    if "--limit" in words:
        words[words.index("--limit") + 1] = "1"
    else:
        words += ["--limit", "1"]
    return [*words, "--method", ",".join(chosen)]


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if blocks(path, "python")], ids=lambda path: path.name)
def test_python_runs(path: Path, desk: Path) -> None:
    found = blocks(path, "python")
    if any("torch" in text for text in found):
        pytest.importorskip("torch")
    if missing := _ran(path.name, warm.run_python("\n".join(found))):
        pytest.skip(missing)


def test_a_command_that_needs_a_missing_package_is_left_out_with_what_reads_its_files(
    desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solved = "loadmaster plan model.json --on cluster.json --method cp-sat --save plan.json"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    said = MissingExtra.of("ortools", "exact", "cp-sat")
    monkeypatch.setattr(warm, "run", lambda *words: subprocess.CompletedProcess(words, 1, "", f"error: {said}"))
    assert _run(solved, DOCUMENTS[0]) == "ortools is not installed"
    assert _reads_of("loadmaster explain plan.json", {solved: ""}) == "plan.json was not written"
    assert not _reads_of("loadmaster plan model.json", {solved: ""})
    monkeypatch.setattr(warm, "run", lambda *words: subprocess.CompletedProcess(words, 1, "", "error: no such file"))
    with pytest.raises(AssertionError, match="no such file"):
        _run(solved, DOCUMENTS[0])


def test_commands_run_where_no_solver_is_installed(desk: Path) -> None:
    (desk / "sitecustomize.py").write_text("import sys\n\nsys.modules['ortools'] = None\n")
    path = os.pathsep.join([str(desk), *filter(None, [os.environ.get("PYTHONPATH")])])
    plan = ("plan", "model.json", "--on", "cluster.json", "--seconds", SECONDS)
    done = command(*plan, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    done = command(*plan, "--method", "cp-sat", PYTHONPATH=path)
    assert done.returncode == 1 and "needs the package 'ortools'" in done.stderr


def test_there_is_something_to_run() -> None:
    readme = ROOT / "README.md"
    assert any(line.startswith("loadmaster ") for line in commands(readme))
    assert blocks(readme, "python")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
        assert (path.parent / target).exists(), target
