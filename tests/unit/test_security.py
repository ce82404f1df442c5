"""What SECURITY.md promises, where no other test does."""

from __future__ import annotations

import ast
import io
from pathlib import Path

import pytest

import loadmaster
from loadmaster.bench.records import RunLedger, RunRecord, read_records
from loadmaster.bench.table import Column, Table
from loadmaster.errors import InvalidGraph, UnreadableFile, printable
from loadmaster.files.text import parse_json
from loadmaster.report.terminal import console

SOURCE = Path(loadmaster.__file__).parent
SOURCES = sorted(SOURCE.rglob("*.py"))
OSC52 = "\x1b]52;c;ZXZpbA==\x07"


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").partition(".")[0])
    return found


def test_pickles_are_read_from_our_own_cache_alone() -> None:
    pickles = {"pickle", "cPickle", "dill", "cloudpickle", "shelve"}
    found = {path.relative_to(SOURCE).as_posix() for path in SOURCES if imports(path) & pickles}
    assert found == {"compiled/cache.py", "search/workers.py"}  # the latter only between a process and its workers
    for path in SOURCES:
        text = path.read_text()
        assert text.count("torch.load(") == text.count("weights_only=True)") and "allow_pickle=True" not in text, path


def test_every_file_goes_through_the_one_writer() -> None:
    direct = ("open", "write_text", "write_bytes", "save_file", "savefig", "savez_compressed")
    spare = {"writing.py", "partitioners.py"}  # the latter writes into a temporary folder of its own
    for path in SOURCES:
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            name = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
            if name in direct[1:] and path.name not in spare:
                assert "writing(" in text, f"{path} writes by {name}"
            if name == "open" and any(isinstance(a, ast.Constant) and a.value in ("w", "wb", "a") for a in node.args):
                assert "writing(" in text, f"{path} writes by open"


def test_nothing_talks_to_a_network() -> None:
    nets = {"socket", "urllib", "http", "requests", "httpx", "ftplib", "smtplib", "aiohttp", "huggingface_hub"}
    assert {path.name: found for path in SOURCES if (found := imports(path) & nets)} == {}


def test_no_text_is_run_as_code() -> None:
    """But for the programs that the runtime writes itself, from a step that the user's own process captured."""
    for path in SOURCES:
        if path.parts[-2:] == ("runtime", "listing.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "__import__"), path


def test_names_reach_a_terminal_spelled_out() -> None:
    out = io.StringIO()
    screen = console()
    screen.file = out
    screen.print(f"a {OSC52}b\x07\x9b2J\u202e", "second")
    assert not set("\x1b\x07\x9b\u202e") & set(out.getvalue())
    assert "\\x1b]52;c;" in out.getvalue()
    assert "\x1b" not in str(InvalidGraph(f"op '{OSC52}'", OSC52, OSC52))
    assert printable("plain — ü 模型\n\ttab") == "plain — ü 模型\n\ttab"


@pytest.mark.parametrize("name", ["=cmd()", "+1+1", "@x", "-2+3", "a|b", "a\nb", "a\u2028b", OSC52, "<script>"])
def test_names_stay_in_their_cell(name: str) -> None:
    table = Table("t", (Column("name"), Column("value", "count")), [(name, 1)])
    line = table.csv().splitlines()[1]
    assert not line.lstrip('"').startswith(("=", "+", "@", "-"))
    assert len(table.csv().splitlines()) == 2 and len(table.text().splitlines()) == 5
    row = table.markdown().splitlines()[4]
    assert row.replace("\\|", "").count("|") == 3 and "<script" not in row and "\x1b" not in row


@pytest.mark.parametrize("name", ["a\u2028b", "a\u0085b", "a\x0cb", "a\x1cb", "模型", "\ud800"])
def test_records_of_any_name_are_read_back(name: str, tmp_path: Path) -> None:
    record = RunRecord(name, "g", "c", "d", "step-time", "heft", "1", 0)
    RunLedger(tmp_path / "r.jsonl").add(record)
    assert RunLedger(tmp_path / "r.jsonl").finished(record.key)
    assert [found.row for found in read_records(tmp_path / "r.jsonl")] == [name]


def test_a_line_torn_inside_a_letter_costs_that_line_alone(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    one, two = (RunRecord("模型", "g", "c", "d", "step-time", "heft", "1", seed) for seed in (1, 2))
    raw = '{"row": "模型'.encode()
    path.write_bytes(one.to_line().encode() + raw[:-1])
    ledger = RunLedger(path)
    ledger.add(two)
    assert [record.seed for record in read_records(path)] == [1, 2]


@pytest.mark.parametrize(
    "field, value", [("seed", "x"), ("value", 10**30), ("seconds", None), ("seconds", 10**400), ("history", 3)]
)
def test_odd_lines_of_a_ledger_are_named(field: str, value: object, tmp_path: Path) -> None:
    import json

    data = json.loads(RunRecord("r", "g", "c", "d", "step-time", "heft", "1", 0).to_line())
    (tmp_path / "r.jsonl").write_text(json.dumps({**data, field: value}) + "\n")
    with pytest.raises(UnreadableFile, match="no record"):
        read_records(tmp_path / "r.jsonl")


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(UnreadableFile, match="'a' is given twice"):
        parse_json(b'{"a": 1, "b": {"a": 1, "a": 2}}', "here")


def test_small_files_that_unpack_to_anything_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gzip
    import lzma

    from loadmaster.files import text

    monkeypatch.setattr(text, "MOST_CHARACTERS", 10_000)
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(b" " * 100_000))
    (tmp_path / "bomb.json.xz").write_bytes(lzma.compress(b" " * 100_000))
    for name in ("bomb.json.gz", "bomb.json.xz"):
        with pytest.raises(UnreadableFile, match="holds more than"):
            text.read_json(tmp_path / name)
