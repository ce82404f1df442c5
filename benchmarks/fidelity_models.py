"""The models that the cost model is held to: training steps and inferences, built from their configurations.

`FITTED` may be used to fit efficiencies; the others are held out and were never looked at for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Made = tuple[torch.nn.Module, dict[str, Any]]
FITTED = ("distilbert", "phi", "neox", "convnext", "swin", "regnet", "mobilenet", "electra", "mlp")


@dataclass(frozen=True)
class Case:
    """One model at one size, in one dtype, training or not."""

    model: str
    dtype: str
    training: bool
    batch: int
    length: int  # tokens, or pixels of a side

    @property
    def name(self) -> str:
        return f"{self.model}-{self.batch}x{self.length}-{'train' if self.training else 'infer'}-{self.dtype}"

    @property
    def held_out(self) -> bool:
        return self.model not in FITTED

    def build(self, device: str, tiny: bool = False) -> Made:
        """The model and its inputs on the device; in its dtype, which is the default while it is built."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(getattr(torch, self.dtype))
        try:
            with torch.device(device):
                module, inputs = _MODELS[self.model](self.batch, self.length, 0.25 if tiny else 1.0)
        finally:
            torch.set_default_dtype(before)
        return module.train(self.training), inputs


TRAIN = [
    ("bert", 16, 128), ("gpt2", 8, 512), ("llama", 4, 1024), ("t5", 16, 256), ("vit", 32, 224), ("qwen2", 4, 1024),
    ("resnet", 32, 224), ("albert", 32, 128), ("mistral", 4, 512), ("distilbert", 32, 128), ("phi", 8, 512),
    ("neox", 8, 512), ("convnext", 32, 224), ("swin", 32, 224), ("regnet", 32, 224), ("mobilenet", 32, 224),
    ("electra", 32, 128), ("mlp", 1024, 2048),
]  # fmt: skip
INFER = [
    ("bert", 8, 128), ("gpt2", 1, 512), ("llama", 1, 512), ("vit", 16, 224), ("resnet", 16, 224), ("convnext", 16, 224),
    ("phi", 4, 256), ("t5", 8, 256),
]  # fmt: skip
DTYPES = ("float32", "bfloat16")


def cases() -> list[Case]:
    every = [(True, *row) for row in TRAIN] + [(False, *row) for row in INFER]
    return [Case(model, dtype, training, b, n) for training, model, b, n in every for dtype in DTYPES]


def more_inferences() -> list[Case]:
    """Of models that may be fitted to, for what Python takes the host in inference."""
    sizes = [
        ("distilbert", 8, 128), ("neox", 1, 512), ("swin", 8, 224), ("regnet", 8, 224), ("mobilenet", 16, 224),
        ("electra", 8, 128), ("mlp", 64, 2048),
    ]  # fmt: skip
    return [Case(model, dtype, False, b, n) for model, b, n in sizes for dtype in DTYPES]


def tiny_cases() -> list[Case]:
    some = [("bert", True, 2, 16), ("gpt2", True, 2, 16), ("resnet", True, 2, 32), ("mlp", False, 8, 64)]
    return [Case(model, "float32", training, b, n) for model, training, b, n in some]


def _tokens(batch: int, length: int, labels: bool = True) -> dict[str, Any]:
    ids = torch.randint(0, 1000, (batch, length))
    return {"input_ids": ids, "labels": ids} if labels else {"input_ids": ids}


def _images(batch: int, side: int, classes: int = 1000) -> dict[str, Any]:
    images = torch.randn(batch, 3, side, side, dtype=torch.get_default_dtype())
    return {"pixel_values": images, "labels": torch.randint(0, classes, (batch,))}


def _bert(batch: int, length: int, share: float) -> Made:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(num_hidden_layers=int(12 * share))), _tokens(batch, length)


def _gpt2(batch: int, length: int, share: float) -> Made:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=int(12 * share), use_cache=False)), _tokens(batch, length)


def _llama(batch: int, length: int, share: float) -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16}
    config = LlamaConfig(num_hidden_layers=int(8 * share), use_cache=False, **sizes)
    return LlamaForCausalLM(config), _tokens(batch, length)


def _t5(batch: int, length: int, share: float) -> Made:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(d_model=768, d_ff=3072, num_layers=int(12 * share), num_heads=12)
    return T5EncoderModel(config), _tokens(batch, length, labels=False)


def _vit(batch: int, side: int, share: float) -> Made:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(num_hidden_layers=int(12 * share), image_size=side, num_labels=1000)
    return ViTForImageClassification(config), _images(batch, side)


def _qwen2(batch: int, length: int, share: float) -> Made:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {"hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14, "num_key_value_heads": 2}
    config = Qwen2Config(vocab_size=50_000, num_hidden_layers=int(8 * share), use_cache=False, **sizes)
    return Qwen2ForCausalLM(config), _tokens(batch, length)


def _resnet(batch: int, side: int, share: float) -> Made:
    from transformers import ResNetConfig, ResNetForImageClassification

    depths = [3, 4, 6, 3] if share == 1 else [1, 1, 1, 1]
    return ResNetForImageClassification(ResNetConfig(depths=depths, num_labels=1000)), _images(batch, side)


def _albert(batch: int, length: int, share: float) -> Made:
    from transformers import AlbertConfig, AlbertForMaskedLM

    sizes = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    return AlbertForMaskedLM(AlbertConfig(num_hidden_layers=int(12 * share), **sizes)), _tokens(batch, length)


def _mistral(batch: int, length: int, share: float) -> Made:
    from transformers import MistralConfig, MistralForCausalLM

    sizes = {"hidden_size": 2048, "intermediate_size": 7168, "num_attention_heads": 16, "num_key_value_heads": 4}
    config = MistralConfig(num_hidden_layers=int(4 * share), use_cache=False, **sizes)
    return MistralForCausalLM(config), _tokens(batch, length)


def _distilbert(batch: int, length: int, share: float) -> Made:
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    return DistilBertForMaskedLM(DistilBertConfig(n_layers=max(1, int(6 * share)))), _tokens(batch, length)


def _phi(batch: int, length: int, share: float) -> Made:
    from transformers import PhiConfig, PhiForCausalLM

    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16}
    config = PhiConfig(num_hidden_layers=int(6 * share), use_cache=False, **sizes)
    return PhiForCausalLM(config), _tokens(batch, length)


def _neox(batch: int, length: int, share: float) -> Made:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16}
    config = GPTNeoXConfig(num_hidden_layers=int(8 * share), use_cache=False, **sizes)
    return GPTNeoXForCausalLM(config), _tokens(batch, length)


def _convnext(batch: int, side: int, share: float) -> Made:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    depths = [3, 3, 9, 3] if share == 1 else [1, 1, 1, 1]
    return ConvNextForImageClassification(ConvNextConfig(depths=depths, num_labels=1000)), _images(batch, side)


def _swin(batch: int, side: int, share: float) -> Made:
    from transformers import SwinConfig, SwinForImageClassification

    depths = [2, 2, 6, 2] if share == 1 else [1, 1, 1, 1]
    config = SwinConfig(image_size=side, depths=depths, num_labels=1000)
    return SwinForImageClassification(config), _images(batch, side)


def _regnet(batch: int, side: int, share: float) -> Made:
    from transformers import RegNetConfig, RegNetForImageClassification

    config = RegNetConfig(depths=[2, 6, 12, 2], hidden_sizes=[224, 448, 896, 2240], groups_width=112, num_labels=1000)
    return RegNetForImageClassification(config), _images(batch, side)


def _mobilenet(batch: int, side: int, share: float) -> Made:
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    return MobileNetV2ForImageClassification(MobileNetV2Config(num_labels=1000)), _images(batch, side)


def _electra(batch: int, length: int, share: float) -> Made:
    from transformers import ElectraConfig, ElectraForMaskedLM

    return ElectraForMaskedLM(ElectraConfig(num_hidden_layers=int(12 * share))), _tokens(batch, length)


class _Perceptron(torch.nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        parts = [part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
        self.layers = torch.nn.Sequential(*parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).float().pow(2).mean()


def _mlp(batch: int, width: int, share: float) -> Made:
    return _Perceptron(width, 8), {"x": torch.randn(batch, width, dtype=torch.get_default_dtype())}


_MODELS: dict[str, Callable[[int, int, float], Made]] = {
    "bert": _bert, "gpt2": _gpt2, "llama": _llama, "t5": _t5, "vit": _vit, "qwen2": _qwen2, "resnet": _resnet,
    "albert": _albert, "mistral": _mistral, "distilbert": _distilbert, "phi": _phi, "neox": _neox,
    "convnext": _convnext, "swin": _swin, "regnet": _regnet, "mobilenet": _mobilenet, "electra": _electra,
    "mlp": _mlp,
}  # fmt: skip
