"""Folders of safetensors: transformers saves them, ours reads their headers; and a census of a mixture's experts."""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from loadmaster import InvalidSetting, UnreadableFile  # noqa: E402
from loadmaster.cli.words import is_read  # noqa: E402
from loadmaster.serving.popularity import Popularity, read_census, record_census  # noqa: E402
from loadmaster.serving.reading import language_of  # noqa: E402

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "vocab_size": 128, "head_dim": 8}


def saved(folder: Path, kind: str, **more: Any) -> Any:
    config = transformers.AutoConfig.for_model(kind, **SIZES, **more)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(folder, max_shard_size="20KB")
    return model


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma2", "mixtral"])
def test_sizes_are_those_that_were_saved(tmp_path: Path, kind: str) -> None:
    more = {"num_local_experts": 4, "num_experts_per_tok": 2} if kind == "mixtral" else {}
    model = saved(tmp_path, kind, **more)
    assert is_read(str(tmp_path), None)
    found = language_of(str(tmp_path))
    assert found.weight_bytes == sum(p.numel() * p.element_size() for p in model.parameters())
    assert found.tied == (kind == "gemma2") and (found.experts, found.chosen) == ((4, 2) if more else (0, 0))
    layer = found.layers[0]
    assert (layer.key, layer.value) == (16, 16)
    if more:
        assert layer.expert_bytes == 4 * 3 * 4 * 32 * 64  # four experts of three matrices, in 32 bits
    described = tmp_path / "described"
    described.mkdir()
    (described / "config.json").write_text((tmp_path / "config.json").read_text())
    alone = language_of(str(described))  # in 16 bits, without small tensors that config.json does not tell
    assert 0.97 < 2 * alone.weight_bytes / found.weight_bytes <= 1


def test_a_folder_that_is_damaged_is_refused_in_words(tmp_path: Path) -> None:
    saved(tmp_path, "llama")
    part = sorted(tmp_path.glob("model-*.safetensors"))[1]
    whole = part.read_bytes()
    for cut in (0, 4, 40, len(whole) - 1):
        part.write_bytes(whole[:cut])
        with pytest.raises(UnreadableFile, match=part.name):
            language_of(str(tmp_path))
    part.unlink()
    with pytest.raises(UnreadableFile, match="are not there"):
        language_of(str(tmp_path))


def test_a_census_counts_what_the_router_chose(tmp_path: Path) -> None:
    """Each of 24 tokens takes 2 of 4 experts in each layer; the shares follow from the counts by hand."""
    model = saved(tmp_path, "mixtral", num_local_experts=4, num_experts_per_tok=2)
    record_census(model, [torch.arange(12)[None], torch.arange(40, 52)[None]], tmp_path / "census.json")
    counts = json.loads((tmp_path / "census.json").read_text())["counts"]
    assert [sum(row) for row in counts] == [48, 48]
    popularity = read_census(tmp_path / "census.json", 4, 2, 2)
    by_hand = sum(1 - (1 - min(1.0, n / 24)) ** 3 for n in counts[0]) / 4
    assert popularity.share(0, 3) == pytest.approx(by_hand) and by_hand <= Popularity(4, 2).share(0, 3)
    with pytest.raises(InvalidSetting, match="the model has 3"):
        read_census(tmp_path / "census.json", 4, 2, 3)
