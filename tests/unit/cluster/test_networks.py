"""Machines joined by a network."""

from __future__ import annotations

import pytest

from loadmaster.cluster import Cluster
from loadmaster.errors import InvalidCluster


def test_one_adapter_leads_out_of_each_machine() -> None:
    cluster = Cluster.preset("2xl4@25gbe@2xl4")
    assert cluster.links[0, 2].bytes_per_s == cluster.links[3, 0].bytes_per_s == 2.9e9
    out = {int(cluster.channel[src, dst]) for src in (0, 1) for dst in (2, 3)}
    back = {int(cluster.channel[src, dst]) for src in (2, 3) for dst in (0, 1)}
    assert len(out) == len(back) == 1 and out != back
    assert cluster.links[0, 1].bytes_per_s == 25e9


@pytest.mark.parametrize("name", ["2xl4@2xl4", "2xl4@25gbe", "1xl4@25gbe@1xl4@ib-400@1xl4", "1xl4@carrier@1xl4"])
def test_what_joins_them_must_be_said(name: str) -> None:
    with pytest.raises(InvalidCluster, match="network"):
        Cluster.preset(name)
