"""Training loops as people write them, under a memory limit: at most five lines change, and no result does."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from loadmaster.runtime import backend, promise
from tests.eager_graphs import run_graphs

Wrap = Callable[[nn.Module, torch.optim.Optimizer], Any]
LIMIT = "1TiB"


@pytest.fixture(autouse=True)
def eager_graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(backend, "_by_inductor", run_graphs)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Tight:
    """Compiles under a limit that some ops must run again for."""

    def __init__(self, share: float = 0.8) -> None:
        self.share, self.limit, self.optimizer = share, 0, None

    def __call__(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        self.optimizer = optimizer
        options = {"memory_limit": f"{self.limit}B" if self.limit else LIMIT, "optimizer": optimizer}
        return torch.compile(module, backend=backend.loadmaster, options=options)

    def known(self) -> promise.Promise:
        assert self.optimizer is not None
        return promise._by_optimizer[self.optimizer]


def same_under_a_limit(loop: Callable[[Wrap], Any], share: float = 0.85) -> None:
    """Results of the loop in eager torch, with a limit far away, and with one that is near."""
    expected = loop(lambda module, _: module)
    tight = Tight()
    assert loop(tight) == expected
    tight.limit = round(share * tight.known().measured_bytes)
    torch._dynamo.reset()
    assert loop(tight) == expected
    assert tight.known().kept and sum(planned.again for planned in tight.known().graphs) > 0


class Decoder(nn.Module):
    def __init__(self, layers: int = 6, width: int = 16, words: int = 32) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.mixes = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.inner = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(layers)
        )

    def forward(self, words: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        for number, (mix, inner) in enumerate(zip(self.mixes, self.inner, strict=True)):
            query, key, value = mix(self.norms[2 * number](x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
            x = x + F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)
            x = x + inner(self.norms[2 * number + 1](x))
        return F.cross_entropy(self.head(x).flatten(0, 1), wanted.flatten())


def test_a_language_model_with_accumulation_clipping_schedule_evaluation_and_resume(tmp_path: Path) -> None:
    text = torch.randint(0, 32, (8, 20, 33), generator=torch.Generator().manual_seed(0))

    def loop(wrap: Wrap) -> list[float]:
        torch.manual_seed(0)
        model = Decoder()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
        step_model, losses = wrap(model, optimizer), []
        for step in range(6):
            optimizer.zero_grad()
            for micro in range(2):
                part = text[(step + micro) % 8]
                loss = step_model(part[:, :-1], part[:, 1:]) / 2
                loss.backward()
                losses.append(loss.item())
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            if step == 3:
                torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / "at.pt")
                weights, state = torch.load(tmp_path / "at.pt")
                model.load_state_dict(weights)
                optimizer.load_state_dict(state)
        model.eval()
        with torch.no_grad():
            losses.append(step_model(text[0][:5, :-1], text[0][:5, 1:]).item())
        return losses

    same_under_a_limit(loop)


class Denoiser(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.time, self.enter, self.leave = (
            nn.Linear(1, width),
            nn.Conv2d(3, width, 3, padding=1),
            nn.Conv2d(width, 3, 1),
        )
        self.layers = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)) for _ in range(5)
        )

    def forward(self, noisy: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        x = self.enter(noisy) + self.time(time[:, None])[..., None, None]
        for layer in self.layers:
            x = x + layer(x)
        return self.leave(x)


def test_a_diffusion_model_with_a_short_last_batch_and_a_moving_average() -> None:
    images = torch.randn(20, 3, 16, 16, generator=torch.Generator().manual_seed(0))

    def loop(wrap: Wrap) -> list[float]:
        torch.manual_seed(0)
        model = Denoiser()
        average = copy.deepcopy(model)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        denoise, losses = wrap(model, optimizer), []
        for _ in range(3):
            for part in images.split(8):  # 8, 8 and 4
                noise, time = torch.randn_like(part), torch.rand(len(part))
                mixed = part * (1 - time)[:, None, None, None] + noise * time[:, None, None, None]
                loss = F.mse_loss(denoise(mixed, time), noise)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
                        mean.lerp_(weight, 0.1)
                losses.append(loss.item())
        return [*losses, *(weight.sum().item() for weight in average.parameters())]

    same_under_a_limit(loop)


def test_the_trainer_of_hugging_face(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    config = transformers.GPT2Config(
        vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    words = torch.randint(0, 32, (21, 16), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": row} for row in words]

    def trained(limited: bool, steps: int, resume: bool) -> list[float]:
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(config)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        if limited:
            model.compile(backend=backend.loadmaster, options={"memory_limit": LIMIT, "optimizer": optimizer})
        arguments = transformers.TrainingArguments(
            str(tmp_path / str(limited)), per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=steps,
            max_grad_norm=0.5, use_cpu=True, report_to=[], save_steps=3, logging_steps=1, disable_tqdm=True,
        )  # fmt: skip
        trainer = transformers.Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, None))
        trainer.train(resume_from_checkpoint=resume)
        if limited:
            known = promise._by_optimizer[optimizer]
            assert known.kept and known.predicted_bytes > 0
        losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
        return [*losses, trainer.evaluate(data)["eval_loss"]]

    def loop(limited: bool) -> list[float]:
        return [*trained(limited, 3, False), *trained(limited, 5, True)]

    assert loop(True) == loop(False)


def test_accelerate() -> None:
    accelerate = pytest.importorskip("accelerate")
    text = torch.randint(0, 32, (30, 17), generator=torch.Generator().manual_seed(0))

    def loop(wrap: Wrap) -> list[float]:
        torch.manual_seed(0)
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = Decoder()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        loader = torch.utils.data.DataLoader(text, batch_size=8)  # type: ignore[arg-type]
        called, updates, batches = accelerator.prepare(wrap(model, optimizer), optimizer, loader)
        losses = []
        for _ in range(2):
            for part in batches:
                with accelerator.accumulate(called):
                    loss = called(part[:, :-1], part[:, 1:])
                    accelerator.backward(loss)
                    accelerator.clip_grad_norm_(called.parameters(), 0.5)
                    updates.step()
                    updates.zero_grad()
                losses.append(loss.item())
        return losses

    same_under_a_limit(loop, 0.93)


def test_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    text = torch.randint(0, 32, (24, 17), generator=torch.Generator().manual_seed(0))

    def loop(wrap: Wrap) -> list[float]:
        torch.manual_seed(0)
        losses: list[float] = []

        class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.model = Decoder()
                self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-2)
                self.called = [wrap(self.model, self.optimizer)]  # in a list: no part of its state

            def training_step(self, part: torch.Tensor, _: int) -> torch.Tensor:
                loss: torch.Tensor = self.called[0](part[:, :-1], part[:, 1:])
                losses.append(loss.item())
                return loss

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return self.optimizer

        loader = torch.utils.data.DataLoader(text, batch_size=8)  # type: ignore[arg-type]
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
        )
        trainer.fit(Module(), loader)
        return losses

    same_under_a_limit(loop)
