"""Models of families that no part of the forecast was fitted to, for benchmarks/forecast_gpu.py.

Each in the width people use; depth only repeats, so most have four layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fidelity_models
import torch
from fidelity_models import Case, Made, _images, _tokens
from torch import Tensor, nn
from torch.nn import functional as F

from loadmaster.zoo.diffusion import unet

# Model, batch, length or side: bfloat16 training steps, inferences, and float32 training steps.
TRAIN = [  # what takes longest to compile first
    ("segformer", 8, 256), ("mobilevit", 32, 256), ("efficientnet", 64, 224), ("ddpm", 32, 32), ("bart", 8, 512),
    ("whisper", 8, 3000), ("mamba2", 4, 1024), ("deberta", 16, 256), ("gemma2", 4, 512), ("poolformer", 64, 224),
    ("hifigan", 8, 128), ("clip", 32, 224), ("dinov2", 32, 224), ("opt", 8, 512), ("moe", 8, 512), ("dit", 32, 32),
    ("wav2vec2", 8, 48_000), ("vae", 8, 128), ("patchtst", 64, 512), ("dlrm", 8192, 64), ("lstm", 64, 48),
    ("sage", 100_000, 128), ("segnet", 16, 256),
]  # fmt: skip
INFER = [
    ("opt", 1, 512), ("gemma2", 1, 1024), ("bart", 4, 256), ("whisper", 1, 3000), ("deberta", 8, 128),
    ("dinov2", 8, 224), ("efficientnet", 16, 224), ("mobilevit", 8, 256), ("dit", 8, 32), ("ddpm", 8, 32),
    ("clip", 8, 224), ("moe", 1, 512), ("hifigan", 2, 128), ("dlrm", 2048, 64), ("sage", 100_000, 128),
]  # fmt: skip
SINGLE = [("opt", 4, 512), ("efficientnet", 32, 224), ("dlrm", 8192, 64), ("whisper", 4, 3000), ("ddpm", 16, 32)]


def held_out_cases() -> list[Case]:
    half = [
        Case(m, "bfloat16", training, b, n) for some, training in ((TRAIN, True), (INFER, False)) for m, b, n in some
    ]
    return half + [Case(m, "float32", True, b, n) for m, b, n in SINGLE]


def tiny_cases() -> list[Case]:
    """Every family once, as small as it goes."""
    sides = {
        "whisper": 3000, "wav2vec2": 8000, "segformer": 64, "efficientnet": 64, "dinov2": 56, "mobilevit": 64,
        "poolformer": 64, "clip": 224, "patchtst": 512, "dit": 16, "ddpm": 16, "vae": 32, "segnet": 64, "sage": 8,
    }  # fmt: skip
    return [Case(m, "float32", True, 500 if m == "sage" else 2, sides.get(m, 32)) for m, _, _ in TRAIN]


class Scalar(nn.Module):
    """A module whose result is the mean of what another returns, in training."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = self.inner(*args, **kwargs)
        out = out if isinstance(out, Tensor) else out[0]
        return out.float().mean() if self.training else out


def _floats(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.get_default_dtype())


def _bart(batch: int, length: int, share: float) -> Made:
    from transformers import BartConfig, BartForConditionalGeneration

    layers = {"encoder_layers": int(4 * share), "decoder_layers": int(4 * share)}
    sizes = {"d_model": 768, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072, **layers}
    heads = {"encoder_attention_heads": 12, "decoder_attention_heads": 12, "use_cache": False}
    return BartForConditionalGeneration(BartConfig(**sizes, **heads)), _tokens(batch, length)


def _whisper(batch: int, length: int, share: float) -> Made:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sizes = {"d_model": 512, "encoder_layers": int(4 * share), "decoder_layers": int(4 * share), "use_cache": False}
    heads = {"encoder_attention_heads": 8, "decoder_attention_heads": 8}
    config = WhisperConfig(**sizes, **heads, encoder_ffn_dim=2048, decoder_ffn_dim=2048)
    inputs = {"input_features": _floats(batch, 80, length), "labels": torch.randint(0, 1000, (batch, 128))}
    return WhisperForConditionalGeneration(config), inputs


def _wav2vec2(batch: int, length: int, share: float) -> Made:
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    off = {"mask_time_prob": 0.0, "mask_feature_prob": 0.0, "layerdrop": 0.0, "apply_spec_augment": False}
    model = Wav2Vec2Model(Wav2Vec2Config(num_hidden_layers=int(4 * share), **off))
    return Scalar(model), {"input_values": _floats(batch, length)}


def _gemma2(batch: int, length: int, share: float) -> Made:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    sizes = {"hidden_size": 1152, "intermediate_size": 6912, "num_attention_heads": 8, "num_key_value_heads": 4}
    more = {"head_dim": 128, "vocab_size": 64_000, "num_hidden_layers": int(4 * share), "use_cache": False}
    return Gemma2ForCausalLM(Gemma2Config(**sizes, **more)), _tokens(batch, length)


def _opt(batch: int, length: int, share: float) -> Made:
    from transformers import OPTConfig, OPTForCausalLM

    sizes = {"hidden_size": 1024, "ffn_dim": 4096, "num_attention_heads": 16, "word_embed_proj_dim": 1024}
    config = OPTConfig(num_hidden_layers=int(4 * share), use_cache=False, **sizes)
    return OPTForCausalLM(config), _tokens(batch, length)


def _deberta(batch: int, length: int, share: float) -> Made:
    from transformers import DebertaV2Config, DebertaV2ForMaskedLM

    sizes = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 32_000}
    way = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 256}
    config = DebertaV2Config(num_hidden_layers=int(4 * share), max_relative_positions=512, **sizes, **way)
    return DebertaV2ForMaskedLM(config), _tokens(batch, length)


def _mamba2(batch: int, length: int, share: float) -> Made:
    from transformers import Mamba2Config, Mamba2ForCausalLM

    sizes = {"hidden_size": 768, "num_heads": 24, "head_dim": 64, "state_size": 64, "vocab_size": 32_000}
    config = Mamba2Config(num_hidden_layers=int(4 * share), n_groups=1, chunk_size=128, use_cache=False, **sizes)
    return Mamba2ForCausalLM(config), _tokens(batch, length)


def _segformer(batch: int, side: int, share: float) -> Made:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(hidden_sizes=[64, 128, 320, 512], decoder_hidden_size=256, num_labels=150)
    return SegformerForSemanticSegmentation(config), _images(batch, side) | {"labels": _classes(batch, side)}


def _classes(batch: int, side: int) -> Tensor:
    return torch.randint(0, 100, (batch, side, side))


def _efficientnet(batch: int, side: int, share: float) -> Made:
    from transformers import EfficientNetConfig, EfficientNetForImageClassification

    config = EfficientNetConfig(width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280, num_labels=1000)
    return EfficientNetForImageClassification(config), _images(batch, side)


def _dinov2(batch: int, side: int, share: float) -> Made:
    from transformers import Dinov2Config, Dinov2ForImageClassification

    config = Dinov2Config(num_hidden_layers=int(4 * share), image_size=side, patch_size=14, num_labels=1000)
    return Dinov2ForImageClassification(config), _images(batch, side)


def _mobilevit(batch: int, side: int, share: float) -> Made:
    from transformers import MobileViTConfig, MobileViTForImageClassification

    return MobileViTForImageClassification(MobileViTConfig(image_size=side, num_labels=1000)), _images(batch, side)


def _poolformer(batch: int, side: int, share: float) -> Made:
    from transformers import PoolFormerConfig, PoolFormerForImageClassification

    config = PoolFormerConfig(num_labels=1000, drop_path_rate=0.0)
    return PoolFormerForImageClassification(config), _images(batch, side)


def _clip(batch: int, side: int, share: float) -> Made:
    from transformers import CLIPConfig, CLIPModel

    layers = {"num_hidden_layers": int(4 * share)}
    config = CLIPConfig(text_config=layers, vision_config={**layers, "image_size": side})
    inputs = {"input_ids": torch.randint(0, 1000, (batch, 77)), "pixel_values": _images(batch, side)["pixel_values"]}
    return CLIPModel(config), {**inputs, "return_loss": True}


def _hifigan(batch: int, length: int, share: float) -> Made:
    from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig

    return Scalar(SpeechT5HifiGan(SpeechT5HifiGanConfig())), {"spectrogram": _floats(batch, length, 80)}


def _patchtst(batch: int, length: int, share: float) -> Made:
    from transformers import PatchTSTConfig, PatchTSTForPrediction

    sizes = {"d_model": 256, "num_attention_heads": 8, "ffn_dim": 1024, "num_hidden_layers": 3}
    config = PatchTSTConfig(num_input_channels=7, context_length=length, prediction_length=96, patch_length=16, **sizes)
    values = {"past_values": _floats(batch, length, 7), "future_values": _floats(batch, 96, 7)}
    return PatchTSTForPrediction(config), values


class Dlrm(nn.Module):
    """Embeddings of categories, their products with each other, and perceptrons (Naumov et al., 2019)."""

    def __init__(self, tables: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20_000, width) for _ in range(tables))
        self.bottom = nn.Sequential(
            nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, width)
        )
        wide = (tables + 1) * tables // 2 + width
        self.top = nn.Sequential(nn.Linear(wide, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1))
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1), persistent=False)

    def forward(self, dense: Tensor, sparse: Tensor, clicked: Tensor) -> Tensor:
        x = self.bottom(dense)
        every = torch.stack([x, *(table(sparse[:, at]) for at, table in enumerate(self.tables))], 1)
        products = torch.bmm(every, every.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        score = self.top(torch.cat([x, products], 1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(score.float(), clicked) if self.training else score


def _dlrm(batch: int, width: int, share: float) -> Made:
    clicked = torch.randint(0, 2, (batch,)).float()
    inputs = {"dense": _floats(batch, 13), "sparse": torch.randint(0, 20_000, (batch, 26)), "clicked": clicked}
    return Dlrm(26, width), inputs


class Lstm(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.inner = nn.LSTM(width, width, 2, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        out = self.head(self.inner(self.words(ids))[0])
        return F.cross_entropy(out.flatten(0, 1).float(), ids.flatten()) if self.training else out


class Sage(nn.Module):
    """Means over neighbours (Hamilton, Ying and Leskovec, 2017)."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.theirs = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.head = nn.Linear(width, 40)

    def forward(self, nodes: Tensor, edges: Tensor, label: Tensor) -> Tensor:
        ones = torch.ones(edges.shape[1], 1, dtype=nodes.dtype, device=nodes.device)
        degree = torch.zeros(nodes.shape[0], 1, dtype=nodes.dtype, device=nodes.device).index_add(0, edges[1], ones)
        for own, theirs in zip(self.own, self.theirs, strict=True):
            mean = torch.zeros_like(nodes).index_add(0, edges[1], nodes[edges[0]]) / degree.clamp(min=1)
            nodes = F.relu(own(nodes) + theirs(mean))
        out = self.head(nodes)
        return F.cross_entropy(out.float(), label) if self.training else out


def _sage(count: int, width: int, share: float) -> Made:
    edges = torch.randint(0, count, (2, 8 * count))
    inputs = {"nodes": _floats(count, width), "edges": edges, "label": torch.randint(0, 40, (count,))}
    return Sage(width, 3), inputs


class Dit(nn.Module):
    """A diffusion transformer with adaptive norms (Peebles and Xie, 2023)."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.heads, self.cut = heads, nn.Conv2d(4, width, 2, 2)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.adapt = nn.ModuleList(nn.Linear(width, 6 * width) for _ in range(layers))
        self.mix = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.wide = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.back = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))
        self.last = nn.Linear(width, 16)

    def forward(self, noisy: Tensor, time: Tensor, wanted: Tensor) -> Tensor:
        x, t = self.cut(noisy).flatten(2).transpose(1, 2), F.silu(self.time(time))
        for adapt, mix, out, wide, back in zip(self.adapt, self.mix, self.out, self.wide, self.back, strict=True):
            shift, scale, gate, shift2, scale2, gate2 = adapt(t)[:, None].chunk(6, -1)
            h = F.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift
            query, key, value = mix(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            x = x + gate * out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
            h = F.layer_norm(x, x.shape[-1:]) * (1 + scale2) + shift2
            x = x + gate2 * back(F.gelu(wide(h), approximate="tanh"))
        out = self.last(F.layer_norm(x, x.shape[-1:]))
        return F.mse_loss(out, wanted) if self.training else out


def _dit(batch: int, side: int, share: float) -> Made:
    shape = (batch, side * side // 4, 16)
    inputs = {"noisy": _floats(batch, 4, side, side), "time": _floats(batch, 256), "wanted": _floats(*shape)}
    return Dit(768, int(6 * share), 12), inputs


class Vae(nn.Module):
    """An autoencoder of images: convolutions, group norms, nearest upsampling (Rombach et al., 2022)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        down, up, now = [nn.Conv2d(3, width, 3, padding=1)], [], width
        for wide in (width, 2 * width, 4 * width):
            down += [nn.GroupNorm(32, now), nn.SiLU(), nn.Conv2d(now, wide, 3, 2, 1)]
            back = [nn.Upsample(scale_factor=2.0), nn.Conv2d(wide, now, 3, padding=1), nn.GroupNorm(32, now), nn.SiLU()]
            up, now = [*back, *up], wide
        self.down, self.mean = nn.Sequential(*down), nn.Conv2d(now, 8, 1)
        self.start = nn.Conv2d(4, now, 1)
        self.up = nn.Sequential(*up, nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, image: Tensor) -> Tensor:
        mean, spread = self.mean(self.down(image)).chunk(2, 1)
        out = self.up(self.start(mean + torch.exp(0.5 * spread) * torch.randn_like(mean)))
        return F.mse_loss(out, image) + 1e-3 * (mean.pow(2) + spread.exp() - spread).mean() if self.training else out


class Experts(nn.Module):
    """Tokens go to two of eight experts, up to a capacity, by one-hot products (Lepikhin et al., 2021)."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.experts, self.gate = experts, nn.Linear(width, experts, bias=False)
        self.wide = nn.Parameter(0.02 * _floats(experts, width, 4 * width))
        self.back = nn.Parameter(0.02 * _floats(experts, 4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        share = F.softmax(self.gate(flat).float(), -1)
        best, which = share.topk(2, -1)
        room = 2 * flat.shape[0] // self.experts * 5 // 4
        chosen = F.one_hot(which, self.experts).transpose(0, 1).flatten(0, 1)
        place = (chosen.cumsum(0) * chosen).sum(-1) - 1
        slot = F.one_hot(place.clamp(max=room), room + 1)[:, :room].to(x.dtype)
        sent = torch.einsum("te,tc->tec", chosen.to(x.dtype), slot).unflatten(0, (2, -1))
        inside = torch.einsum("ktec,td->ecd", sent, flat)
        made = torch.bmm(F.gelu(torch.bmm(inside, self.wide)), self.back)
        back = torch.einsum("ktec,ecd,kt->td", sent, made, best.transpose(0, 1).to(x.dtype))
        return back.view_as(x)


class Moe(nn.Module):
    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2 * layers + 1))
        self.mix = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.experts = nn.ModuleList(Experts(width, 8) for _ in range(layers))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for at, (mix, out, experts) in enumerate(zip(self.mix, self.out, self.experts, strict=True)):
            query, key, value = mix(self.norms[2 * at](x)).unflatten(-1, (3, -1, 64)).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + out(mixed.transpose(1, 2).flatten(2))
            x = x + experts(self.norms[2 * at + 1](x))
        out = self.head(self.norms[-1](x))
        return F.cross_entropy(out.flatten(0, 1).float(), ids.flatten()) if self.training else out


class Segnet(nn.Module):
    """A U-Net with batch norms and transposed convolutions (Ronneberger, Fischer and Brox, 2015)."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.down = nn.ModuleList(_double(a, b) for a, b in zip((3, *widths), widths, strict=False))
        pairs = list(zip(widths[::-1], widths[-2::-1], strict=False))
        self.rise = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.up = nn.ModuleList(_double(2 * b, b) for _, b in pairs)
        self.head = nn.Conv2d(widths[0], 21, 1)

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        kept, x = [], image
        for number, part in enumerate(self.down):
            x = part(F.max_pool2d(x, 2) if number else x)
            kept.append(x)
        for rise, part, other in zip(self.rise, self.up, kept[-2::-1], strict=True):
            x = part(torch.cat([rise(x), other], 1))
        out = self.head(x)
        return F.cross_entropy(out.float(), label) if self.training else out


def _double(a: int, b: int) -> nn.Module:
    first = (nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
    return nn.Sequential(*first, nn.Conv2d(b, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU())


def _words(made: Callable[[float], nn.Module]) -> Callable[[int, int, float], Made]:
    def build(batch: int, length: int, share: float) -> Made:
        return made(share), {"ids": torch.randint(0, 1000, (batch, length))}

    return build


def _ddpm(batch: int, side: int, share: float) -> Made:
    module, given = unet(True, batch, side, (1, 2, 2, 2) if side > 16 else (1, 2), 128, 2)
    # Its angles are float32 whatever the weights are.
    module.time.dense.register_forward_pre_hook(lambda part, given: (given[0].to(part[0].weight.dtype),))
    return module, dict(zip(("noisy", "step", "noise"), given, strict=True))


def _vae(batch: int, side: int, share: float) -> Made:
    return Vae(128), {"image": _floats(batch, 3, side, side)}


def _segnet(batch: int, side: int, share: float) -> Made:
    label = torch.randint(0, 21, (batch, side, side))
    return Segnet((64, 128, 256, 512)), {"image": _floats(batch, 3, side, side), "label": label}


FAMILIES: dict[str, Callable[[int, int, float], Made]] = {
    "bart": _bart, "whisper": _whisper, "wav2vec2": _wav2vec2, "gemma2": _gemma2, "opt": _opt, "deberta": _deberta,
    "mamba2": _mamba2, "segformer": _segformer, "efficientnet": _efficientnet, "dinov2": _dinov2,
    "mobilevit": _mobilevit, "poolformer": _poolformer, "clip": _clip, "hifigan": _hifigan, "patchtst": _patchtst,
    "dlrm": _dlrm, "lstm": _words(lambda share: Lstm(10_000, 1024)), "sage": _sage, "dit": _dit, "ddpm": _ddpm,
    "vae": _vae, "moe": _words(lambda share: Moe(32_000, 768, int(4 * share))), "segnet": _segnet,
}  # fmt: skip
fidelity_models._MODELS.update(FAMILIES)
