"""The page as text: data read back by another reader, names as text, no network, small enough."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from html import unescape
from html.parser import HTMLParser
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.cost import price
from loadmaster.graph import GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.plans import Plan
from loadmaster.report.answers import answers
from loadmaster.report.diff import diff
from loadmaster.report.explain import explain, replayed
from loadmaster.report.html import report_page, write_report
from loadmaster.report.page_data import varints
from loadmaster.search import Budget, Result, solve
from loadmaster.simulator import simulate
from tests.unit.report.subjects import by_blocks, tiny, training_like

SCRIPT_NAME = "<script>alert(1)</script>"


def page_of(result: Result, **settings: Any) -> str:
    return report_page(result, explain(result, seconds=0.2), **settings)


def read_varints(data: bytes, count: int) -> list[int]:
    """One number at a time, by the words of the format alone."""
    values, at = [], 0
    for _ in range(count):
        code = shift = 0
        while True:
            byte = data[at]
            at += 1
            code |= (byte & 127) << shift
            shift += 7
            if not byte & 128:
                break
        values.append(-((code + 1) >> 1) if code & 1 else code >> 1)
    assert at == len(data)
    return values


def data_of(page: str) -> dict[str, Any]:
    match = re.search(r'<script type="text/plain" id="packed">([A-Za-z0-9+/=]+)</script>', page)
    assert match
    raw = zlib.decompress(base64.b64decode(match[1]))
    length = int.from_bytes(raw[:4], "little")
    data: dict[str, Any] = json.loads(raw[4 : 4 + length])
    at = 4 + length
    for name, size, count, differences in data["columns"]:
        values = read_varints(raw[at : at + size], count)
        data[name] = list(accumulate(values)) if differences else values
        at += size
    data["op_start"] = starts(data["op_gap"], data["op_length"], data["op_device"])
    data["send_start"] = starts(data["send_gap"], data["send_length"], data["send_wire"])
    for name, size in data["texts"]:
        data[name] = json.loads(raw[at : at + size])
        at += size
    assert at == len(raw)
    return data


@given(st.lists(st.integers(-(2**52), 2**52)))
def test_columns_come_back(values: list[int]) -> None:
    assert read_varints(varints(ints(values)), len(values)) == values


def starts(gap: list[int], length: list[int], resource: list[int]) -> list[int]:
    """From the gaps after what ended before on the same device or link."""
    ended: dict[int, int] = {}
    found = []
    for wait, took, where in zip(gap, length, resource, strict=True):
        found.append(ended.get(where, 0) + wait)
        ended[where] = found[-1] + took
    return found


@pytest.mark.parametrize("method", ["expert", "greedy-fusion"])
def test_every_number_is_that_of_the_timeline(method: str) -> None:
    problem = price(training_like(400), "4xp100-pcie")
    result = solve(problem, method, Budget(None, 4))
    data, line = data_of(page_of(result)), result.timeline
    start = dict(zip(data["op_name"], data["op_start"], strict=True))
    length = dict(zip(data["op_name"], data["op_length"], strict=True))
    for head in np.unique(result.plan.kernel).tolist():
        members = int((result.plan.kernel == head).sum())
        name = problem.graph.op_name[head] + (f" (+{members - 1} fused)" if members > 1 else "")
        assert (start[name], start[name] + length[name]) == (line.start_ns[head], line.end_ns[head])
    assert data["send_start"] == line.send_start_ns.tolist()
    assert (np.array(data["send_start"]) + data["send_length"]).tolist() == line.send_end_ns.tolist()
    assert data["send_bytes"] == problem.graph.nbytes[line.send_tensor].tolist()
    assert data["curve_ns"] == line.curve_ns.tolist()
    assert data["curve_bytes"] == line.curve_bytes.tolist()
    assert data["curve_start"] == line.curve_start.tolist()
    assert data["peak_bytes"] == line.peak_bytes.tolist()
    assert [sum(part["nbytes"] for part in peak["parts"]) for peak in data["peaks"]] == line.peak_bytes.tolist()
    assert data["step_ns"] == line.step_ns
    on_path = np.array(data["op_critical"]) @ data["op_length"] + np.array(data["send_critical"]) @ data["send_length"]
    assert on_path == line.step_ns


class Words(HTMLParser):
    """Collects text, tags and addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parsed(page: str) -> Words:
    words = Words()
    words.feed(page)
    return words


def odd_result() -> Result:
    g = GraphBuilder(SCRIPT_NAME)
    x = g.tensor(100, name="<img src=x onerror=alert(2)>")
    g.op(SCRIPT_NAME, "<b>", [], [x], time_ns=10, scope="</script><script>alert(3)</script>")
    g.op("{{SCRIPT}}", "any", [x], [g.tensor(8, "output")], time_ns=10)
    problem = price(g.build(), "2xp100-pcie")
    return replayed(problem, Plan.of(problem, [0, 1]), "</title>{{PACKED}}")


def test_names_are_text_and_never_markup() -> None:
    page = page_of(odd_result())
    words = parsed(page)
    assert words.tags.count("script") == 2
    assert "img" not in words.tags
    assert words.tags.count("title") == 1
    assert SCRIPT_NAME in "".join(words.text)
    data = data_of(page)
    assert data["op_name"] == [SCRIPT_NAME, "{{SCRIPT}}"]


def test_nothing_is_fetched_and_only_our_script_may_run() -> None:
    page = page_of(tiny())
    assert all(address.startswith("#") for address in parsed(page).addresses)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert policy
    assert len(script) == 1
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy[1]
    assert policy[1].startswith("default-src 'none'")


def test_page_says_what_the_result_says() -> None:
    result, other = tiny(), tiny(device=(0, 0, 0, 0))
    text = " ".join(parsed(page_of(result, compared=[other])).text)
    for said in (
        "74 ns",
        "0.95x",  # 70 / 74
        "At most 35 % from the best unsplit, unfused plan",
        "70 ns",
        result.plan.graph_digest,
        result.plan.cluster_digest,
        "Times of ops are those given with the graph",
        "loadmaster 0.",
        "seed",
        "Critical path by module",
        "d0 is the fullest: 150 B of 1.00 GiB",
    ):
        assert said in text, said


def test_every_sentence_with_evidence_points_to_what_it_speaks_of() -> None:
    result = tiny()
    found = explain(result, seconds=0.1)
    page = report_page(result, found)
    data = data_of(page)
    buttons = re.findall(r"data-kind=(\w+) data-set=(\d+)>([^<]*)<", page)
    assert {kind for kind, _, _ in buttons} >= {"op", "send", "peak"}
    said = {sentence.text: sentence for _, sentences, _ in answers(found) for sentence in sentences}
    for kind, number, text in buttons:
        sentence = said[unescape(text)]
        low, high = data["evidence_start"][int(number) : int(number) + 2]
        assert (kind, tuple(data["evidence"][low:high])) == (sentence.kind, sentence.indexes)


def test_why_an_op_is_where_it_is_was_simulated() -> None:
    result = tiny()
    data = data_of(page_of(result))
    for op, name in enumerate(data["op_name"]):
        group, device, _, _, moves = data["reasons"][data["op_group"][op]]
        assert group == name and device == data["devices"][data["op_device"][op]]
        other = 1 - data["op_device"][op]
        moved = result.plan.device.copy()
        moved[op] = other
        cost = simulate(result.problem, Plan.of(result.problem, moved)).step_ns - result.timeline.step_ns
        assert [move[:2] for move in moves] == [[data["devices"][other], cost]]


def test_a_comparison_has_a_tab_with_both_steps() -> None:
    result, other = tiny(), tiny(device=(0, 0, 0, 0))
    page = report_page(result, explain(result, seconds=0.1), (), diff(other, result))
    xml = page[page.index("<section id=panel-compare") :]
    assert xml.count("<svg viewBox") == 2 and "A step goes from 70 ns" in xml
    assert "data-tab=compare" in page and "data-tab=compare" not in page_of(result)


def test_size_for_20000_ops(tmp_path: Path) -> None:
    problem = price(training_like(20_000), "4xp100-pcie")
    result = replayed(problem, by_blocks(problem))
    write_report(tmp_path / "page.html", result, explain(result, seconds=0.2))
    assert (tmp_path / "page.html").stat().st_size < 600_000
