"""What the words on the command line mean."""

import pytest

from loadmaster import InvalidSetting, UnknownName, UnreadableFile, UnwritableFile
from loadmaster.cli.verbs import words
from loadmaster.graph import GraphBuilder
from loadmaster.planning import default_cluster


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("heft", ["heft"]),
        ("heft,etf", ["heft", "etf"]),
        ("anneal:temperature=0.1,start=heft,etf", ["anneal:temperature=0.1,start=heft", "etf"]),
        ("best-of:of=[heft,etf],one-device", ["best-of:of=[heft,etf]", "one-device"]),
        ("heft, etf", ["heft", "etf"]),
        ("heft,heft", ["heft"]),
        ("random:samples=3,random:samples=4", ["random:samples=3", "random:samples=4"]),
    ],
)
def test_specs_are_split_at_the_commas_between_them(text, specs):
    assert words.split_specs(text) == specs


def test_simulations_alone_mean_no_clock():
    assert words.budget_of(None, 100).seconds is None
    assert words.budget_of(None, None).seconds == 10
    assert words.budget_of(3, 100).seconds == 3


def test_fusion_wraps_the_method():
    from loadmaster import make_method

    method = make_method(words.fused("best-of:of=[heft,etf]", "greedy"))
    assert type(method).__name__ == "GreedyFusion"
    assert [type(part).__name__ for part in method.inner.of] == ["Heft", "Etf"]
    assert words.fused("heft", "none") == "heft"


def test_mistakes_are_found_before_any_work(tmp_path):
    with pytest.raises(UnknownName, match="hefd"):
        words.check_settings(["heft", "hefd"], None, None)
    with pytest.raises(InvalidSetting, match="not a size"):
        words.check_settings(["heft"], "lots", None)
    with pytest.raises(UnwritableFile, match="no folder"):
        words.check_settings(["heft"], None, tmp_path / "nowhere" / "plan.json")
    with pytest.raises(UnwritableFile, match="is a folder"):
        words.check_settings(["heft"], None, tmp_path)
    assert words.check_settings(["heft"], "1KiB", tmp_path / "plan.json") == 1024


def _graph(times):
    graph = GraphBuilder("one")
    graph.op("a", "any", [], [graph.tensor(8)], time_ns=times)
    return graph.build()


@pytest.mark.parametrize(
    ("model", "times", "cluster"),
    [
        ("zoo:gnmt-4", 5, "this-machine"),
        ("model.json", 5, "this-machine"),
        ("model.json", [5, 6, 7], "3xa100-nvlink"),
    ],
)
def test_default_clusters(model, times, cluster):
    chosen, reason = default_cluster(model, _graph(times))
    assert chosen.name == cluster
    assert reason


def test_clusters_are_presets_or_files(tmp_path):
    assert words.cluster_of("2xk80").num_devices == 2
    with pytest.raises(UnknownName):
        words.cluster_of("2xk81")
    with pytest.raises(UnreadableFile):
        words.cluster_of(str(tmp_path / "mine.json"))
