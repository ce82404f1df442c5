"""Splitting: Graph to Graph. An op, and those around it, become parts that are placed and ordered like any op.

`axes` says along which dimensions an op may be split, by its kind and its shapes; `regions` which ops are split
together; `parts` makes the graph. `sharding` says which ops could run on every device, each on its share, and
`sharded` makes that graph. What the parts make is put together again where somebody needs it whole: that is an
op, too, with its time and its memory."""

from loadmaster.passes.splitting.axes import Axis, axes_of
from loadmaster.passes.splitting.parts import SplitGraph, SplitOrigin, is_part, part_name, split_graph, split_region
from loadmaster.passes.splitting.regions import Split, SplitRegion, grow, splits_of
from loadmaster.passes.splitting.sharded import Sharded, ShardedGraph, sharded_graph, sharded_of

__all__ = [
    "Axis",
    "Sharded",
    "ShardedGraph",
    "Split",
    "SplitGraph",
    "SplitOrigin",
    "SplitRegion",
    "axes_of",
    "grow",
    "is_part",
    "part_name",
    "sharded_graph",
    "sharded_of",
    "split_graph",
    "split_region",
    "splits_of",
]
