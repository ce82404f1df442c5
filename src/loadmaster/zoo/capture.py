"""Captures a model of the zoo as a graph. Imports torch."""

from loadmaster.graph import Graph
from loadmaster.importers.torch.export import capture_fake
from loadmaster.importers.torch.step import Target
from loadmaster.zoo import ZooEntry


def capture_entry(entry: ZooEntry, training: bool) -> Graph:
    """One step of the entry's model, with its own optimizer; without memory for weights or activations. With all masks
    and the copies of idle dropout, as the graphs that are shipped have them and published figures rest on them."""
    name, target = f"{entry.name}/{'train' if training else 'infer'}", Target(masks=True, copies=True)
    return capture_fake(entry.model, training=training, optimizer=entry.optimizer, name=name, target=target)
