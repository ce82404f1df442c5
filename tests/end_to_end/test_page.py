"""The report in a real browser: drawn, zoomed, searched, unfolded, and true to the timeline."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.cost import price
from loadmaster.errors import LoadmasterError
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.plans import Plan
from loadmaster.report.explain import explain, replayed
from loadmaster.report.html import write_report
from loadmaster.report.units import size_text
from loadmaster.search import Budget, Result, solve
from tests.unit.report.subjects import training_like

NAMES = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((found for name in NAMES if name and (found := shutil.which(name))), None)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: the pages were not opened")

SCRIPT_NAME = "<script>alert(1)</script>"


@dataclass
class Opened:
    """A page that has finished drawing, with what it complained about."""

    page: Any
    result: Result
    complaints: list[str] = field(default_factory=list)

    def js(self, code: str) -> Any:
        return self.page.evaluate(code)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as tools:
        opened = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--headless"])
        yield opened
        opened.close()


def from_zoo(name: str, instead: int) -> Graph:
    """The shipped graph, or a made one of about that size while there is none."""
    from loadmaster.importers import load

    try:
        return load(f"zoo:{name}")
    except LoadmasterError:
        return training_like(instead)


def inception() -> Result:
    return solve(price(from_zoo("inception-v3", 5_000), "2xp100-pcie"), "heft", Budget(None, 1))


def gnmt() -> Result:
    return solve(price(from_zoo("gnmt-4", 17_000), "4xp100-pcie"), "expert", Budget(None, 1))


def odd() -> Result:
    g = GraphBuilder("odd names")
    x = g.tensor(100, name="<img src=x onerror=alert(2)>")
    g.op(SCRIPT_NAME, "any", [], [x], time_ns=1_000, scope="<i>module</i>")
    g.op("other", "any", [x], [g.tensor(8, "output")], time_ns=1_000)
    problem = price(g.build(), "2xp100-pcie")
    return replayed(problem, Plan.of(problem, [0, 1]))


def open_page(browser: Any, result: Result, folder: Path, **settings: Any) -> Opened:
    target = folder / "page.html"
    write_report(target, result, explain(result, seconds=0.5))
    page = browser.new_page(viewport={"width": 1440, "height": 900}, **settings)
    opened = Opened(page, result)
    page.on("console", lambda said: opened.complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    page.on("dialog", lambda dialog: (opened.complaints.append("dialog: " + dialog.message), dialog.dismiss()))
    page.on("request", lambda asked: None if asked.url.startswith("file:") else opened.complaints.append(asked.url))
    page.goto(target.as_uri())
    while not opened.js(
        "Boolean(window.loadmaster && window.loadmaster.ready)"
    ):  # its policy forbids eval, and waiting
        page.wait_for_timeout(50)
    page.wait_for_timeout(100)
    return opened


@pytest.fixture(scope="module", params=[inception, gnmt], ids=["inception-v3", "gnmt-4"])
def shown(request: Any, browser: Any, tmp_path_factory: Any) -> Iterator[Opened]:
    opened = open_page(browser, request.param(), tmp_path_factory.mktemp("page"))
    yield opened
    assert opened.complaints == []
    opened.page.close()


def colours_in(opened: Opened, canvas: str) -> int:
    """How many different colours the canvas shows."""
    return int(
        opened.js(
            f"""() => {{ const canvas = document.getElementById("{canvas}");
            const dots = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data, seen = new Set();
            for (let i = 0; i < dots.length; i += 4 * 7)
              if (dots[i + 3]) seen.add(dots[i] * 65536 + dots[i + 1] * 256 + dots[i + 2]);
            return seen.size; }}"""
        )
    )


def test_it_is_drawn(shown: Opened) -> None:
    opened = shown
    assert colours_in(opened, "lanes") > 8
    opened.page.click("#tab-graph")
    assert opened.js("document.querySelectorAll('#canvas svg g[role=button]').length") > 3
    opened.page.click("#tab-modules")


def test_all_answers_are_seen_without_scrolling_in_1440_by_900(shown: Opened) -> None:
    opened = shown
    boxes = opened.js(
        """() => Object.fromEntries([".strip", "#lanes", "#limit", "#next", "#memory", ".tabs"].map((at) =>
        { const box = document.querySelector(at).getBoundingClientRect();
        return [at, [box.left, box.top, box.right, box.bottom]]; }))"""
    )
    assert boxes[".strip"][3] - boxes[".strip"][1] <= 96
    assert all(bottom <= 900 for _, _, _, bottom in boxes.values())
    assert boxes["#lanes"][2] <= 0.72 * 1440 <= 1.04 * boxes["#limit"][0]
    scrolls = opened.js(
        """[...document.querySelectorAll('body *')].filter((one) => one.scrollHeight > one.clientHeight + 2
        && /auto|scroll/.test(getComputedStyle(one).overflowY) && one.tagName !== 'CODE').map((one) => one.className)"""
    )
    assert [name for name in scrolls if name != "across"] == []


def test_each_sentence_shows_its_evidence(shown: Opened) -> None:
    opened = shown
    first = opened.page.locator("button.say[data-kind=op]").first
    first.click()
    marked = opened.js("Array.from(loadmaster.page.timeline.found).reduce((sum, one) => sum + one, 0)")
    total = opened.js("loadmaster.data.op_start.length")
    assert 0 < marked < total and first.get_attribute("aria-pressed") == "true"
    first.click()
    assert opened.js("loadmaster.page.timeline.found") is None


def test_numbers_are_those_of_the_timeline(shown: Opened) -> None:
    opened = shown
    line = opened.result.timeline
    columns = {
        "op_start": line.start_ns,
        "op_length": line.end_ns - line.start_ns,
        "op_device": opened.result.plan.device,
        "send_start": line.send_start_ns,
        "send_length": line.send_end_ns - line.send_start_ns,
        "curve_ns": line.curve_ns,
        "curve_bytes": line.curve_bytes,
        "peak_bytes": line.peak_bytes,
    }
    for name, column in columns.items():
        assert np.array_equal(opened.js(f"Array.from(loadmaster.data.{name})"), column), name
    assert opened.js("loadmaster.data.step_ns") == line.step_ns
    makers = opened.js("Array.from(loadmaster.data.read_maker)")
    graph = opened.result.problem.graph
    assert makers == [int(maker) for maker in graph.producer[graph.reads] if maker >= 0]
    names = opened.js("loadmaster.data.op_name")
    assert tuple(names) == opened.result.problem.graph.op_name


def view(opened: Opened) -> tuple[float, float]:
    opened.page.wait_for_timeout(60)
    return opened.js("loadmaster.page.timeline.from"), opened.js("loadmaster.page.timeline.to")


def test_zoom_by_button_key_and_wheel(shown: Opened) -> None:
    opened = shown
    page, step = opened.page, opened.result.timeline.step_ns
    page.click("#zoom-fit")
    assert view(opened) == (0, step)
    page.click("#zoom-in")
    low, high = view(opened)
    assert high - low == pytest.approx(step / 2)
    page.focus("#lanes")
    page.keyboard.press("+")
    assert view(opened)[1] - view(opened)[0] < high - low
    before = view(opened)[0]
    page.keyboard.press("ArrowRight")
    assert view(opened)[0] > before
    page.hover("#lanes")
    page.mouse.wheel(0, -400)
    assert view(opened)[1] - view(opened)[0] < (high - low) / 1.6
    page.keyboard.press("0")
    assert view(opened) == (0, step)


def test_search_finds_and_shows(shown: Opened) -> None:
    opened = shown
    page, graph = opened.page, opened.result.problem.graph
    wanted = graph.op_name[graph.num_ops // 2]
    page.fill("#search", wanted)
    count = opened.js("loadmaster.page.matches.length")
    low = wanted.lower()
    fields = zip(graph.op_name, graph.scope, graph.kind, strict=True)
    assert count == sum(1 for row in fields if any(low in text.lower() for text in row))
    page.press("#search", "Enter")
    first = opened.js("loadmaster.page.matches[0]")
    assert page.inner_text("#details h3") == graph.op_name[first]
    start_ns = int(opened.result.timeline.start_ns[first])
    assert f"{start_ns / 1e6:,.3f} ms" in page.inner_text("#details")
    low_ns, high_ns = view(opened)
    assert low_ns <= start_ns <= high_ns
    page.press("#search", "Escape")
    assert opened.js("loadmaster.page.timeline.found") is None
    page.click("#zoom-fit")


def test_fold_and_unfold(shown: Opened) -> None:
    opened = shown
    page = opened.page
    page.click("#tab-graph")
    before = opened.js("loadmaster.page.graph.visible.length")
    box = page.locator("#canvas g[aria-expanded=false]").first
    number = box.get_attribute("data-id")
    box.click()
    assert opened.js("loadmaster.page.graph.visible.length") > before
    frame = page.locator(f"#canvas g[aria-expanded=true][data-id='{number}']")
    frame.focus()
    page.keyboard.press("Enter")
    assert opened.js("loadmaster.page.graph.visible.length") == before


def test_peak_shows_what_is_alive(shown: Opened) -> None:
    opened = shown
    page = opened.page
    spot = opened.js(
        "() => { const t = loadmaster.page.timeline, row = t.rows[1]; return [t.width / 2, row.top + row.height + 4]; }"
    )
    page.locator("#lanes").click(position={"x": spot[0], "y": spot[1]})
    assert "Peak of" in page.inner_text("#details h3")
    peak = int(opened.result.timeline.peak_bytes[1])
    assert f"holds\n{size_text(peak)} of " in page.inner_text("#details")
    parts = opened.js("loadmaster.data.peaks[1].parts.map((part) => part.nbytes)")
    assert sum(parts) == peak
    page.click("#back")
    assert page.is_visible("#answers") and not page.is_visible("#details")


def test_clicking_an_op_says_why_it_is_there_and_what_it_waited_for(shown: Opened) -> None:
    opened = shown
    page, line = opened.page, opened.result.timeline
    longest = int((line.end_ns - line.start_ns).argmax())
    spot = opened.js(
        f"""() => {{ const t = loadmaster.page.timeline, row = t.rowOf("op", {longest});
        const middle = loadmaster.data.op_start[{longest}] + loadmaster.data.op_length[{longest}] / 2;
        t.show(middle - 1e6, middle + 1e6); return [t.x(middle), row.top + row.height / 2]; }}"""
    )
    page.wait_for_timeout(60)
    page.locator("#lanes").click(position={"x": spot[0], "y": spot[1]})
    assert page.inner_text("#details h3") == opened.result.problem.graph.op_name[longest]
    text = page.inner_text("#details").upper()
    for title in ("WHY HERE", "WAITED FOR", "READS FROM", "READ BY", "HOLDS"):
        assert title in text
    page.locator("#details .go").first.click()
    assert page.inner_text("#details h3") != opened.result.problem.graph.op_name[longest]
    opened.js(f"loadmaster.page.go('op', {longest})")
    page.get_by_role("button", name="Show in the graph").click()
    focused = opened.js("document.activeElement.getAttribute('aria-label')")
    assert focused.startswith(opened.result.problem.graph.op_name[longest])
    page.click("#tab-modules")
    page.click("#zoom-fit")


def test_what_an_op_waited_for_is_on_the_critical_path(shown: Opened) -> None:
    """Walking back from the last op by the page's own links comes to the start of the step without a gap."""
    walked = shown.js(
        """() => { const d = loadmaster.data, page = loadmaster.page;
        let kind = "op", at = d.path_index.at(-1), steps = 0;
        const ends = (k, i) => k === "op" ? d.op_start[i] + d.op_length[i] : d.send_start[i] + d.send_length[i];
        while (steps++ < 1e5) {
          const start = kind === "op" ? d.op_start[at] : d.send_start[at];
          if (start === 0) return 0;
          if (kind === "send") { kind = "op"; at = d.send_maker[at];
            if (at < 0 || d.op_start[at] + d.op_length[at] !== start) return 0; continue; }
          const found = []; page.link = (k, i) => { found.push([k, i]); return element("li", {}); };
          page.waitedFor(at); delete page.link;
          if (!found.length) return start;
          if (ends(...found[0]) !== start) return -1;
          [kind, at] = found[0];
        } return -2; }"""
    )
    assert walked == 0


def test_critical_path_is_as_long_as_the_step(shown: Opened) -> None:
    opened = shown
    total = opened.js(
        """() => { const d = loadmaster.data; let sum = 0; d.path_index.forEach((item, at) => {
        sum += d.path_kind[at] ? d.send_length[item] : d.op_length[item]; }); return sum; }"""
    )
    assert total == opened.result.timeline.step_ns
    opened.page.click("#critical")
    assert opened.page.get_attribute("#critical", "aria-pressed") == "true"
    assert colours_in(opened, "lanes") > 3
    opened.page.click("#critical")


def test_every_control_can_be_reached_by_key(shown: Opened) -> None:
    opened = shown
    opened.page.focus(".skip")
    reached = set()
    for _ in range(60):
        opened.page.keyboard.press("Tab")
        reached.add(opened.js("document.activeElement.id"))
        if {"search", "critical", "zoom-in", "lanes"} <= reached:
            break
    assert {"search", "critical", "zoom-in", "lanes"} <= reached
    opened.page.focus("#lanes")
    opened.page.keyboard.press("/")
    assert opened.js("document.activeElement.id") == "search"


def test_a_script_in_a_name_is_shown_as_text(browser: Any, tmp_path: Path) -> None:
    opened = open_page(browser, odd(), tmp_path)
    opened.page.fill("#search", "alert(1)")
    opened.page.press("#search", "Enter")
    assert opened.page.inner_text("#details h3") == SCRIPT_NAME
    opened.page.click("#tab-graph")
    assert SCRIPT_NAME[:10] in opened.page.inner_text("#canvas")
    opened.js("loadmaster.page.timeline.select({ kind: 'peak', index: 1 })")
    assert "<img src=x" in opened.page.inner_text("#details")
    assert opened.js("document.querySelectorAll('script').length") == 2
    assert opened.js("document.querySelectorAll('img, i[onclick], #canvas i').length") == 0
    assert opened.complaints == []


def test_light_dark_and_print_differ(browser: Any, tmp_path: Path) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        opened = open_page(browser, odd(), tmp_path, color_scheme=scheme)
        grounds.append(opened.js("getComputedStyle(document.body).backgroundColor"))
        assert colours_in(opened, "lanes") > 2
    assert grounds[0] != grounds[1]
    opened.page.emulate_media(media="print")
    assert not opened.page.is_visible(".tabs")
    assert opened.page.is_visible("#panel-details") and opened.page.is_visible("#next")
    assert opened.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_on_a_phone_actions_come_first_and_the_timeline_is_there(browser: Any, tmp_path: Path) -> None:
    opened = open_page(browser, odd(), tmp_path)
    opened.page.set_viewport_size({"width": 390, "height": 844})
    order = [".strip", "#next", "#limit", "#lanes", "#memory", ".tabs"]
    tops = [opened.js(f"document.querySelector('{at}').getBoundingClientRect().top") for at in order]
    assert tops == sorted(tops)
    assert opened.js("document.documentElement.scrollWidth") <= 390


def test_100000_ops_are_small_and_soon_there(browser: Any, tmp_path: Path) -> None:
    problem = price(training_like(100_000), "8xp100-pcie")
    device = np.arange(problem.num_ops) * 8 // problem.num_ops
    opened = open_page(browser, replayed(problem, Plan.of(problem, device)), tmp_path)
    assert (tmp_path / "page.html").stat().st_size < 2_000_000
    drawn = opened.js(
        """() => { const t = loadmaster.page.timeline, times = []; for (let i = 0; i < 40; i++) {
        t.from = i * 1e5; t.to = loadmaster.data.step_ns / (1 + i / 8); const at = performance.now(); t.draw();
        times.push(performance.now() - at); } return times.sort((a, b) => a - b)[37]; }"""
    )
    assert drawn < 400, "on a busy machine; on a quiet one it is under 33 ms"
    assert colours_in(opened, "lanes") > 8
    assert opened.complaints == []
