"""A corpus that anyone can make again: graphs of architectures in `transformers` and of the zoo's families.

`loadmaster lab corpus FOLDER` writes train.jsonl.xz, valid.jsonl.xz and index.csv. Models are built from their default
configurations with fewer layers, without memory and without a download. Families stand on one side of the split, drawn
by the seed; of the zoo's families the members that `bench families` is judged by are never among those to learn from.
What the papers' tables are made on, the zoo's own workloads, is on neither side.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from loadmaster.errors import LoadmasterError, MissingExtra
from loadmaster.files import graph_to_json
from loadmaster.files.text import read_json, write_json, write_json_lines
from loadmaster.files.writing import write_text
from loadmaster.graph import Graph
from loadmaster.zoo import FAMILIES, MEMBERS

# Model types of transformers; those of a row are alike and stay on one side of the split.
TEXT = {
    "bert": "bert roberta electra distilbert",
    "albert": "albert squeezebert mobilebert",
    "convbert": "convbert roformer mpnet",
    "deberta": "deberta",
    "xlnet": "xlnet",
    "fnet": "fnet",
    "gpt": "gpt2 gptj opt bloom",
    "parallel": "gpt_neox phi falcon",
    "llama": "llama qwen2 qwen3 phi3",
    "gemma": "gemma2 olmo2 cohere",
    "mixture": "mixtral qwen2_moe olmoe",
    "bart": "bart pegasus m2m_100",
    "t5": "t5 mt5 longt5",
}
IMAGE = {
    "vit": "vit beit dinov2",
}
STAGED = {  # their configurations have stages, not a number of layers
    "resnet": "resnet regnet",
    "convnext": "convnext poolformer",
    "swin": "swin",
    "mobile": "mobilenet_v2 mobilevit",
    "pyramid": "pvt segformer cvt",
}
LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers",
          "num_encoder_layers", "num_decoder_layers")  # fmt: skip
SIZES = (("training", 2), ("training", 6), ("inference", 4))  # mode and layers of each type
WHOLE = (("training", 0), ("inference", 0))
BATCH, LENGTH, SIDE = 8, 128, 224
HEADS = ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "IMAGE_CLASSIFICATION")
MOST_OPS = 4_000
VALID_SHARE = 0.25  # of the families


@dataclass(frozen=True)
class PublicModel:
    """One graph of the corpus.

    Attributes:
        layers: 0: as many as its configuration has.
    """

    family: str
    kind: str
    mode: str
    layers: int = 0

    @property
    def is_member(self) -> bool:
        """Of a family of the zoo."""
        return self.family in FAMILIES

    @property
    def name(self) -> str:
        size = f"-{self.layers}" if self.layers else ""
        return f"{self.kind}{size}/{self.mode}"

    def capture(self) -> Graph:
        from loadmaster.importers.torch.export import capture_fake
        from loadmaster.zoo.shelf import load_zoo

        if self.is_member:
            return load_zoo(f"{self.kind}/train")
        training = self.mode == "training"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return capture_fake(self._build, training=training, optimizer="none", name=self.name)

    def _build(self, training: bool) -> tuple[Any, dict[str, Any]]:
        """The module with the first head that there is, and example inputs."""
        import torch

        transformers, heads = _transformers(), import_module("transformers.models.auto.modeling_auto")
        plain = transformers.AutoConfig.for_model(self.kind)
        fewer = {name: self.layers for name in LAYERS if self.layers and _is_number(plain, name)}
        config = transformers.AutoConfig.for_model(self.kind, **fewer)
        found = ((head, getattr(heads, f"MODEL_FOR_{head}_MAPPING_NAMES").get(self.kind)) for head in HEADS)
        head, architecture = next(pair for pair in found if pair[1])
        architecture = architecture if isinstance(architecture, str) else architecture[0]
        module = getattr(transformers, architecture)(config)
        if head == "IMAGE_CLASSIFICATION":
            return module, {"pixel_values": torch.zeros(BATCH, 3, SIDE, SIDE)}
        words = torch.zeros(BATCH, LENGTH, dtype=torch.long)
        more = {"decoder_input_ids": words} if head == "SEQ_TO_SEQ_CAUSAL_LM" else {}
        return module, {"input_ids": words, **more, **({"labels": words} if training else {})}


def _is_number(config: Any, name: str) -> bool:
    """Whether it is a setting of its own, not another name of one."""
    return isinstance(getattr(config, name, None), int) and name not in getattr(config, "attribute_map", {})


def _transformers() -> Any:
    try:
        package: Any = import_module("transformers")
    except ModuleNotFoundError:
        raise MissingExtra.of("transformers", "zoo", "the public corpus") from None
    package.logging.set_verbosity_error()
    return package


def public_models() -> list[PublicModel]:
    """All that the recipe captures."""
    tables = ((TEXT, SIZES), (IMAGE, SIZES), (STAGED, WHOLE))
    kinds = [(family, kind, sizes) for table, sizes in tables for family, row in table.items() for kind in row.split()]
    foreign = [PublicModel(family, kind, mode, layers) for family, kind, sizes in kinds for mode, layers in sizes]
    own = [PublicModel(family, f"{family}/{number}", "training") for family in FAMILIES for number in range(MEMBERS)]
    return own[MEMBERS:] + foreign + own[:MEMBERS]  # what is quick to capture comes first


def is_valid(model: PublicModel, seed: int) -> bool:
    """Whether a graph is to choose weights by: a quarter of the families; of the zoo's, the members kept for tests."""
    if model.is_member:
        return int(model.kind.rpartition("/")[2]) % 4 == 3
    families = sorted({**TEXT, **IMAGE, **STAGED})
    random.Random(seed).shuffle(families)
    return model.family in families[: round(VALID_SHARE * len(families))]


def make_corpus(
    folder: Path, seed: int = 0, limit: int | None = None, say: Callable[[str], None] = print
) -> dict[str, int]:
    """Writes the corpus; graphs that are there already, of a run that was stopped, are not captured again.

    Returns:
        how many graphs each file has; what cannot be captured is said and left out.
    """
    parts = folder / "graphs"
    parts.mkdir(parents=True, exist_ok=True)
    wanted = public_models() if limit is None else _spread(public_models(), limit)
    sides: dict[str, list[PublicModel]] = {"train": [], "valid": []}
    for number, model in enumerate(wanted, 1):
        problem = "" if _part(parts, model).is_file() else _kept(model, _part(parts, model))
        say(f"[{number} of {len(wanted)}] {model.name}{problem and ': left out, ' + problem}")
        if not problem:
            sides["valid" if is_valid(model, seed) else "train"].append(model)
    rows = ["split,name,family,mode,ops"]
    for side, models in sides.items():
        if models:
            write_json_lines((_row(parts, model) for model in models), folder / f"{side}.jsonl.xz")
        rows += [f"{side},{m.name},{m.family},{m.mode},{len(_row(parts, m)['ops'])}" for m in models]
    write_text(folder / "index.csv", "\n".join(rows) + "\n")
    return {side: len(models) for side, models in sides.items()}


def _spread(models: list[PublicModel], limit: int) -> list[PublicModel]:
    """So many of them, evenly over the list."""
    return models if limit >= len(models) else [models[i * len(models) // limit] for i in range(limit)]


def _part(parts: Path, model: PublicModel) -> Path:
    return parts / f"{model.name.replace('/', '.')}.json.xz"


def _kept(model: PublicModel, path: Path) -> str:
    """Captures a graph and keeps it; what is wrong with it, if anything is."""
    try:
        graph = model.capture()
    except MissingExtra:
        raise
    except LoadmasterError as error:
        return str(error).splitlines()[0]
    if graph.num_ops > MOST_OPS:
        return f"{graph.num_ops:,} ops are more than {MOST_OPS:,}"
    write_json(graph_to_json(graph), path)
    return ""


def _row(parts: Path, model: PublicModel) -> dict[str, Any]:
    """A line of the corpus: where it is from first, so that readers need not go on to know."""
    graph = read_json(_part(parts, model))
    graph.pop("schema")
    source = "loadmaster zoo" if model.is_member else "transformers"
    origin = {"name": model.name, "source": source, "family": model.family, "model": model.kind, "mode": model.mode}
    return {**origin, **{key: value for key, value in graph.items() if key != "name"}}
