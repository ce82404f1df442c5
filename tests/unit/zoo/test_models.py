"""The zoo's models: their sizes as published, their wiring by other means, and that they train."""

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from loadmaster.errors import UnknownName
from loadmaster.zoo import ENTRIES, FAMILIES, MEMBERS, ZooEntry, find, members

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402

from loadmaster.zoo import cells, language, rnn, wavenet  # noqa: E402

NEEDS_TRANSFORMERS = {"gpt2", "bert-base", "t5-base", "llama-8b", "mixtral-8x7b"}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def need_packages(name: str) -> None:
    if name in NEEDS_TRANSFORMERS:
        pytest.importorskip("transformers")


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def built(name: str, training: bool) -> nn.Module:
    need_packages(name)
    with torch.device("meta"):
        module, _ = find(name)[0].model(training)
    assert isinstance(module, nn.Module)
    return module


# --- the table of entries ---------------------------------------------------------------------------------------------


def test_listing_the_zoo_does_not_import_torch() -> None:
    code = "import sys, loadmaster.zoo as z; z.members('nas-cells'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["gtp2", "gpt2/test", "nas-cells/32", "nas-cells/x", "nas-cells", "nas/0", ""])
def test_an_unknown_name_is_refused_with_what_there_is(name: str) -> None:
    with pytest.raises(UnknownName) as error:
        find(name)
    assert error.value.fix


# --- sizes ------------------------------------------------------------------------------------------------------------

PUBLISHED = {
    # The trainable parameters of the authors' networks as other libraries print them. torchvision's model table:
    "inception-v3/train": 27_161_264,
    "resnet50/train": 25_557_032,
    "vit-base/train": 86_567_656,
    # torchvision's inception_v3(aux_logits=False).
    "inception-v3/infer": 23_834_568,
    # Keras, NASNetLarge: 88,949,818 in all, of which 196,668 are moving averages.
    "nasnet/infer": 88_949_818 - 196_668,
    # The checkpoints' own counts on the Hugging Face hub; BERT's with both pretraining heads is derived below.
    "gpt2/train": 124_439_808,
    "t5-base/train": 222_903_552,
    "llama-8b/train": 8_030_261_248,
    "mixtral-8x7b/train": 46_702_792_704,
    # BertModel has 109,482,240; masked-word head: dense, norm, bias per word; next-sentence head: 2 logits.
    "bert-base/train": 109_482_240 + (768 * 768 + 768) + 2 * 768 + 30_522 + (2 * 768 + 2),
    # arXiv 2006.11239, appendix B: 114 million; the exact count is of the ported LSUN checkpoint.
    "unet-ddpm/train": 113_673_219,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_count_is_the_published_one(name: str) -> None:
    _, training = find(name)
    assert parameters(built(name.rsplit("/", 1)[0], training)) == PUBLISHED[name]


def test_rnnlm_is_zarembas_large_model() -> None:
    # arXiv 1409.2329, section 4.1: 1,500 units, 35 steps, batch 20, 10,000 words; 66 million parameters.
    assert round(parameters(built("rnnlm", True)) / 1e6) == 66
    assert ENTRIES["rnnlm"].settings["steps"] == 35


@pytest.mark.parametrize(("layers", "width", "inner", "millions"), [(24, 1024, 3072, 277), (12, 512, 2048, 41)])
def test_transformer_xl_at_published_depth_has_the_published_size(
    layers: int, width: int, inner: int, millions: int
) -> None:
    # arXiv 1901.02860, table 2 (enwik8): 12 layers 41 M, 24 layers 277 M.
    with torch.device("meta"):
        module = language.TransformerXl(layers, width, heads=8, inner=inner, vocabulary=204, dropout=0.0)
    assert round(parameters(module) / 1e6) == millions


def test_nasnet_mobile_has_the_published_size() -> None:
    # Keras, NASNetMobile: 5,326,716 in all, of which 36,738 are moving averages.
    with torch.device("meta"):
        module, _ = cells.nasnet(False, cells=12, channels=44, stem=32, long_skip=False, batch=1, size=224)
    averages = sum(b.numel() for name, b in module.named_buffers() if "running" in name)
    assert (parameters(module), averages) == (5_326_716 - 36_738, 36_738)


@pytest.mark.parametrize(("layers", "filters", "millions"), [(18, 208, 82), (18, 416, 318), (18, 544, 542)])
def test_amoebanet_d_has_the_published_size(layers: int, filters: int, millions: int) -> None:
    # GPipe, arXiv 1811.06965, table 1.
    with torch.device("meta"):
        module, _ = cells.amoebanet(False, cells=layers, channels=filters, batch=1)
    assert parameters(module) / 1e6 == pytest.approx(millions, rel=0.01)


def test_ddpm_for_cifar_has_the_published_size() -> None:
    # arXiv 2006.11239, appendix B: 35.7 million.
    from loadmaster.zoo.diffusion import UNet

    with torch.device("meta"):
        module = UNet(32, 128, (1, 2, 2, 2), blocks=2, dropout=0.1)
    assert round(parameters(module) / 1e6, 1) == 35.7


@pytest.mark.parametrize("name", ["llama-8b", "mixtral-8x7b"])
def test_large_language_models_are_bfloat16_and_leave_the_default_alone(name: str) -> None:
    assert {p.dtype for p in built(name, True).parameters()} == {torch.bfloat16}
    assert torch.get_default_dtype() == torch.float32


# --- they run ---------------------------------------------------------------------------------------------------------

RNN = {"layers": 3, "width": 8, "vocabulary": 50, "batch": 2, "steps": 3}
SMALL: dict[str, dict[str, Any]] = {
    "rnnlm-4": RNN,
    "gnmt-4": RNN,
    "transformer-xl-2": {"width": 16, "heads": 2, "inner": 32, "batch": 2, "segment": 4, "memory": 3},
    "inception-v3": {"batch": 2, "size": 139, "classes": 10},
    "amoebanet-4": {"cells": 3, "channels": 16, "batch": 2, "size": 64, "classes": 10},
    "nasnet": {"cells": 3, "channels": 8, "stem": 8, "batch": 2, "size": 129, "classes": 10},
    "wavenet-2x18": {"layers": 6, "batch": 2, "steps": 20, "residual": 8, "gate": 8, "skip": 8},
    "resnet50": {"batch": 2, "size": 64, "classes": 10, "depths": (1, 1, 1, 1)},
    "vit-base": {"batch": 2, "size": 32, "classes": 10, "layers": 1},
    "unet-ddpm": {"batch": 1, "size": 32, "width": 32, "factors": (1, 2)},
    "gpt2": {"batch": 2, "steps": 5, "layers": 1, "vocabulary": 99},
    "bert-base": {"batch": 2, "steps": 5, "layers": 1, "vocabulary": 99},
    "t5-base": {"batch": 2, "steps": 5, "targets": 3, "layers": 1, "vocabulary": 99},
    "llama-8b": {"batch": 2, "steps": 5, "width": 256, "layers": 1, "vocabulary": 99},
    "mixtral-8x7b": {"batch": 2, "steps": 5, "width": 256, "layers": 1, "vocabulary": 99},
}


def small(name: str, **also: Any) -> ZooEntry:
    entry = find(name)[0]
    return replace(entry, settings={**entry.settings, **SMALL.get(name, {}), **also})


def test_every_builder_has_a_small_version() -> None:
    assert {ENTRIES[name].build for name in SMALL} == {entry.build for entry in ENTRIES.values()}


@pytest.mark.parametrize("name", SMALL)
def test_a_training_step_reaches_every_weight(name: str) -> None:
    need_packages(name)
    module, inputs = small(name).model(training=True)
    loss = module(*inputs)
    loss.backward()
    assert loss.shape == () and math.isfinite(loss.item())
    missing = [name for name, p in module.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not missing


@pytest.mark.parametrize("name", SMALL)
def test_inference_gives_logits_for_every_example(name: str) -> None:
    need_packages(name)
    entry = small(name)
    module, inputs = entry.model(training=False)
    assert not module.training
    with torch.no_grad():
        logits = module(*inputs)
    assert logits.isfinite().all()
    examples = entry.settings["batch"]
    assert logits.shape[0] == examples
    choices = {key: entry.settings[key] for key in ("vocabulary", "classes") if key in entry.settings}
    assert all(choice in logits.shape for choice in choices.values())


@pytest.mark.parametrize("name", ["rnnlm-4", "transformer-xl-2", "gpt2", "llama-8b"])
def test_no_prediction_sees_the_future(name: str) -> None:
    need_packages(name)
    module, inputs = small(name).model(training=False)
    later = inputs[0].clone()
    later[:, -1] = (later[:, -1] + 1) % 50
    with torch.no_grad():
        before, after = module(*inputs), module(later, *inputs[1:])
    assert torch.allclose(before[:, :-1], after[:, :-1], atol=1e-5)
    assert not torch.allclose(before[:, -1], after[:, -1], atol=1e-5)


# --- wiring, by other means -------------------------------------------------------------------------------------------


def test_unrolled_cell_equals_torchs_own_lstm() -> None:
    cell, own = rnn.LstmCell(5, 7), nn.LSTM(5, 7)
    with torch.no_grad():
        own.weight_ih_l0.copy_(cell.from_input.weight)
        own.weight_hh_l0.copy_(cell.from_hidden.weight)
        own.bias_ih_l0.copy_(cell.from_input.bias)
        own.bias_hh_l0.zero_()
    x = torch.randn(4, 3, 5)  # [steps, batch, inputs]
    assert torch.allclose(torch.stack(rnn.unroll(cell, list(x))), own(x)[0], atol=1e-6)


def silenced(cell: nn.Module) -> None:
    """All weights zero: the candidate is tanh(0), so that the cell and its output stay 0 for ever."""
    for p in cell.parameters():
        nn.init.zeros_(p)


@pytest.mark.parametrize(("silent", "passes"), [(1, False), (2, True), (3, True)])
def test_gnmt_has_residual_connections_from_the_third_layer_on(silent: int, passes: bool) -> None:
    # arXiv 1609.08144, section 3.1: past a silent layer nothing comes unless its input is added to its output.
    words = list(torch.randn(3, 2, 8))  # [steps, batch, width]
    encoder, decoder = rnn.Encoder(silent + 1, 8), rnn.Decoder(silent + 1, 8, memory=8)
    for stack in (encoder, decoder):
        silenced(stack.layers[silent])
    with torch.no_grad():
        above = (encoder(words), decoder(words, torch.randn(2, 4, 8)))
        assert all(bool(h.any()) == passes for hidden in above for h in hidden)


def test_gnmt_reads_the_source_from_both_ends() -> None:
    encoder = rnn.Encoder(2, 8)
    words = torch.randn(3, 2, 8)
    other = words.clone()
    other[-1] += 1
    with torch.no_grad():
        first, first_of_other = encoder(list(words))[0], encoder(list(other))[0]
    assert not torch.allclose(first, first_of_other)


def test_attention_is_a_mean_of_the_memory_weighted_as_written() -> None:
    attention = rnn.AdditiveAttention(4, 6).double()
    query, memory = torch.randn(4).double(), torch.randn(5, 6).double()
    energy = []
    with torch.no_grad():
        for x in memory:
            hidden = torch.tanh(attention.from_query.weight @ query + attention.from_memory.weight @ x)
            energy.append(math.exp((attention.score.weight[0] @ hidden).item()))
        expected = sum(e * x for e, x in zip(energy, memory, strict=True)) / sum(energy)
        given = attention(query[None], attention.from_memory(memory)[None], memory[None])[0]
    assert torch.allclose(given, expected)


def test_relative_shift_puts_each_distance_under_its_key() -> None:
    rows, past = 3, 2
    columns = rows + past
    scores = torch.arange(rows * columns, dtype=torch.float32).view(1, 1, rows, columns)
    shifted = language.relative_shift(scores)
    for i in range(rows):
        for j in range(i + past + 1):  # the keys that query i may see; column c holds the score of distance columns-1-c
            distance = i + past - j
            assert shifted[0, 0, i, j] == scores[0, 0, i, columns - 1 - distance]


def test_wavenet_sees_as_far_back_as_its_dilations_reach() -> None:
    module = wavenet.WaveNet(stacks=2, layers=6, residual=4, gate=4, skip=4, levels=8).double()
    reach = 2 * (1 + 2 + 4) + 1 + 1  # two stacks, the entry convolution, the sample itself
    samples = torch.randint(0, 8, (1, 24))
    with torch.no_grad():
        last = module(samples)[..., -1]
        moved = []
        for i in range(24):
            other = samples.clone()
            other[0, i] = (other[0, i] + 1) % 8
            moved.append(not torch.equal(module(other)[..., -1], last))
    assert moved == [i >= 24 - reach for i in range(24)]


def test_gnmt_calls_each_cell_once_a_step_under_its_own_name() -> None:
    module, inputs = small("gnmt-4").model(training=True)
    calls: Counter[str] = Counter()
    for name, part in module.named_modules():
        part.register_forward_hook(lambda *_, name=name: calls.update([name]))
    module(*inputs)
    layers, steps = RNN["layers"], RNN["steps"]
    cells_seen = {"encoder.layers.0.ahead", "encoder.layers.0.back", "decoder.attention"}
    cells_seen |= {f"encoder.layers.{i}" for i in range(1, layers)} | {f"decoder.layers.{i}" for i in range(layers)}
    assert all(calls[name] == steps for name in cells_seen)
    assert calls["head"] == calls["source_embedding"] == calls["target_embedding"] == 1


# --- families ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_members_are_distinct_and_the_same_every_time(family: str) -> None:
    drawn = members(family)
    assert drawn == members(family) == [find(f"{family}/{i}")[0] for i in range(MEMBERS)]
    assert len({repr(sorted(entry.settings.items())) for entry in drawn}) == MEMBERS == 32


def test_random_cells_read_both_inputs_and_only_earlier_states() -> None:
    for entry in members("nas-cells"):
        for blocks in (entry.settings["normal"], entry.settings["reduction"]):
            reads = [(state, i + 2) for i, (_, left, _, right) in enumerate(blocks) for state in (left, right)]
            assert all(state < made for state, made in reads)
            assert {0, 1} <= {state for state, _ in reads}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_member_trains(family: str) -> None:
    entry = small(f"{family}/3", batch=2)
    if "width" in entry.settings:
        entry = replace(entry, settings={**entry.settings, "width": 8, "vocabulary": 50})
    module, inputs = entry.model(training=True)
    loss: Tensor = module(*inputs)
    loss.backward()
    assert math.isfinite(loss.item())
    assert all(p.grad is not None for p in module.parameters())
