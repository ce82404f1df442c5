"""The page and the picture of plans of whole modules: what is in them, by their text."""

from pathlib import Path

import pytest

from loadmaster import InvalidSetting
from loadmaster.report.grids import Grid, Section
from loadmaster.report.served import ServedPage, SplitAtLength, Strip, changes, plot_sweep, write_served

DEVICES = ("a:0", "<b>:0", "cpu:0")


def column(context: int, cut: int, streamed: bool = False, fits: bool = True) -> SplitAtLength:
    parts = (("layers.0 … x", 0, cut, False), ("head", 1, 100 - cut, streamed))
    return SplitAtLength(context, Strip(parts, DEVICES), 1e9, context * 1e3, fits)


def test_the_page_has_every_row_and_no_markup_of_names(tmp_path: Path) -> None:
    grid = Grid("", ("module", "bytes"), (("layers.<0>", "4 B"), ("head", "8 B")), frozenset((1,)))
    strip = Strip((("layers.<0>", 0, 4, False), ("head", 2, 8, True)), DEVICES)
    figures = (("first token", "3 ms", "modelled"),)
    page = tmp_path / "page.html"
    write_served(page, ServedPage("m & n", "sub", "basis", figures, strip, (Section("Modules", ("So.",), (grid,)),)))
    text = page.read_text()
    assert "m &amp; n" in text and "layers.&lt;0&gt;" in text and "<b>:0" not in text
    assert text.count("<tr>") == 3 and "3 ms" in text and "head: cpu:0, streamed" in text
    assert "<script" not in text and "http" not in text.replace("http-equiv", "").lower()


def test_a_new_split_is_a_change() -> None:
    same, other, streamed = column(1024, 60), column(2048, 60), column(4096, 60, streamed=True)
    assert changes([same, other, streamed, column(8192, 60, streamed=True)]) == [2]


def test_the_picture_names_contexts_and_devices(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = tmp_path / "sweep.svg"
    plot_sweep(figure, "m on two", [column(512, 60), column(1024, 60), column(2048, 30, streamed=True, fits=False)])
    text = figure.read_text()
    for word in ("512", "1k", "2k", "a:0", "streamed", "does not fit", "m on two"):
        assert word in text, word
    with pytest.raises(InvalidSetting, match="kind of figure"):
        plot_sweep(tmp_path / "sweep.txt", "m", [column(512, 60)])
