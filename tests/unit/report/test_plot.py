"""Figures: written, the same every time, and refused with a reason."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from loadmaster.errors import InvalidSetting, MissingExtra
from loadmaster.report.drawing import plot_memory, plot_timeline
from loadmaster.report.plot import plot_methods
from loadmaster.report.summary import compare_summary
from tests.unit.report.subjects import schedule_of, tiny

MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.parametrize("suffix", MAGIC)
def test_figures_of_every_kind(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    for draw in (plot_timeline, plot_memory):
        target = tmp_path / f"{draw.__name__}{suffix}"
        draw(target, schedule_of(tiny()))
        assert target.read_bytes().startswith(MAGIC[suffix])


def test_svg_names_devices_and_links_and_repeats(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("one.svg", "two.svg"):
        plot_timeline(tmp_path / name, schedule_of(tiny()))
    text = (tmp_path / "one.svg").read_text()
    assert text == (tmp_path / "two.svg").read_text()
    for label in ("d0", "d1", "d0 &gt; d1", "time (ns)"):
        assert label in text


def test_methods_are_bars_over_the_bound(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    document = compare_summary([tiny(), tiny(device=(0, 0, 0, 0))])
    plot_methods(tmp_path / "methods.svg", [document, document])
    text = (tmp_path / "methods.svg").read_text()
    assert text.count("diamond") == 2
    assert "step over the lower bound" in text


def test_an_unknown_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="gif"):
        plot_timeline(tmp_path / "x.gif", schedule_of(tiny()))


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match="loadmaster\\[plot\\]"):
        plot_memory(tmp_path / "x.png", schedule_of(tiny()))
