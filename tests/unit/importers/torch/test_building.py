"""What builders do to a module they have made, and the forms in which inputs come."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections import UserDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from loadmaster.errors import ImportFailed, UnreadableFile  # noqa: E402
from loadmaster.graph import WEIGHT  # noqa: E402
from loadmaster.importers import load  # noqa: E402
from loadmaster.importers.torch.building import built  # noqa: E402
from loadmaster.importers.torch.export import capture  # noqa: E402


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(50, 8), nn.Linear(8, 50, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table(x) * self.scale)


WORDS = torch.ones(2, 3, dtype=torch.long)
CONVERSIONS = {
    "half": (lambda m: m.half(), "float16"),
    "to dtype": (lambda m: m.to(torch.bfloat16), "bfloat16"),
    "cuda": (lambda m: m.cuda(), "float32"),
    "to cuda": (lambda m: m.to("cuda"), "float32"),
    "to both": (lambda m: m.to(device="cuda:1", dtype=torch.float64), "float64"),
    "bfloat16 on cuda": (lambda m: m.cuda().bfloat16(), "bfloat16"),
}


@pytest.mark.parametrize("name", CONVERSIONS)
@pytest.mark.filterwarnings("error:.*built for real")
def test_conversions_in_a_builder_need_no_memory_and_keep_ties(name: str) -> None:
    convert, dtype = CONVERSIONS[name]
    module, inputs = built(lambda: (convert(Tied()), (torch.ones(2, 3, dtype=torch.long, device="cuda"),)), name)
    graph = capture(module, inputs, training=False)
    weights = [t for t in range(graph.num_tensors) if graph.role[t] == WEIGHT]
    assert {graph.tensor_dtype[t] for t in weights} == {dtype}
    assert len(weights) == 2  # the table that the head shares, and the scale


def test_outside_a_builder_conversions_are_torchs_own() -> None:
    before = nn.Module._apply, nn.Module.to, nn.Module.cuda
    built(Tied, "tied")
    assert (nn.Module._apply, nn.Module.to, nn.Module.cuda) == before


def test_a_real_build_is_announced() -> None:
    def build() -> tuple[nn.Module, Tensor]:
        module = nn.Linear(4, 4)
        assert module.weight.data_ptr()
        return module, torch.ones(2, 4)

    with pytest.warns(UserWarning, match=r"test_building.py:\d+: cannot be built without memory .*built for real"):
        module, _ = built(build, "mine:build")
    assert type(module.weight.data) is Tensor


@pytest.mark.filterwarnings("ignore:.*built for real")
def test_a_real_build_that_does_not_fit_is_stopped_before() -> None:
    def build() -> nn.Module:
        assert torch.ones(2).data_ptr()
        return nn.Linear(2**24, 2**24)  # a petabyte

    with pytest.raises(ImportFailed, match="GiB"):
        built(build, "mine:build")


def test_a_large_half_model_is_built_in_little_memory(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text(
        "import torch\n"
        "def build():\n"
        "    return torch.nn.Linear(100_000, 100_000).half().cuda(), torch.ones(2, 100_000, device='cuda').half()\n"
    )

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, 8 * 2**30))

    code = "from loadmaster import load; print(load('large:build', training=False).num_ops)"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, preexec_fn=limit, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


# Inputs


@dataclass
class Batch:
    x: Tensor
    scale: float
    more: dict[str, Tensor]


class Adds(nn.Module):
    def forward(self, x: Tensor, y: Tensor | None = None, *, z: Tensor | None = None) -> Tensor:
        return x.exp() + (0 if y is None else y.sin()) + (0 if z is None else z.cos())


class TakesBatch(nn.Module):
    def forward(self, batch: Batch) -> Tensor:
        assert isinstance(batch, Batch)
        return batch.x.exp() * batch.scale + batch.more["y"].sin()


def kinds(graph: Any) -> set[str]:
    return {kind.split(".")[1] for kind in graph.kind} & {"exp", "sin", "cos"}


ONE = torch.ones(3)
FORMS = {
    "tensor": (ONE, {"exp"}),
    "tuple": ((ONE, torch.zeros(3)), {"exp", "sin"}),
    "dict": ({"x": ONE, "z": torch.zeros(3)}, {"exp", "cos"}),
    "user dict": (UserDict(x=ONE, z=torch.zeros(3)), {"exp", "cos"}),
    "args and kwargs": (((ONE,), {"z": torch.zeros(3)}), {"exp", "cos"}),
    "args and no kwargs": (((ONE, torch.zeros(3)), {}), {"exp", "sin"}),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_inputs(form: str) -> None:
    inputs, expected = FORMS[form]
    assert kinds(load(Adds(), inputs=inputs, training=False)) == expected


def test_a_dataclass_is_one_input_and_stays_one() -> None:
    batch = Batch(torch.ones(3), 2.0, {"y": torch.zeros(3)})
    graph = load(TakesBatch(), inputs=batch, training=False)
    assert kinds(graph) == {"exp", "sin"}
    assert {"input[0]['x']", "input[0]['more']['y']"} <= set(graph.tensor_name)
    assert load(TakesBatch(), inputs=(batch,), training=False).digest == graph.digest  # registered anew each time


def test_what_a_tokenizer_returns() -> None:
    transformers = pytest.importorskip("transformers")
    encoded = transformers.BatchEncoding({"x": torch.ones(3), "z": torch.zeros(3)})
    assert kinds(load(Adds(), inputs=encoded, training=False)) == {"exp", "cos"}


# Exported programs


def test_exported_programs_in_memory_and_saved(tmp_path: Path) -> None:
    program = torch.export.export(Adds(), (ONE,), {"z": torch.zeros(3)})
    graph = load(program, training=False)
    assert kinds(graph) == {"exp", "cos"}
    torch.export.save(program, tmp_path / "adds.pt2")
    saved = load(tmp_path / "adds.pt2", training=False)
    assert saved.digest == graph.digest and saved.name == "adds"


def test_dynamic_sizes_are_those_of_the_example(tmp_path: Path) -> None:
    batch = torch.export.Dim("batch")
    program = torch.export.export(Adds(), (torch.ones(6, 2),), dynamic_shapes={"x": {0: batch}})
    with pytest.warns(UserWarning, match="captured at the sizes of its example inputs"):
        graph = load(program, training=False)
    assert (6, 2) in graph.shape


def test_damaged_and_unsafe_programs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "adds.pt2"
    torch.export.save(torch.export.export(Adds(), (ONE,)), path)
    whole = path.read_bytes()
    for damaged in (b"", b"PK", whole[: len(whole) // 2], b"x" * 100):
        path.write_bytes(damaged)
        with pytest.raises(UnreadableFile):
            load(path)


class Trap:
    def __reduce__(self) -> Any:
        return os.system, ("touch sprung",)


def test_nothing_in_an_archive_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import zipfile

    monkeypatch.chdir(tmp_path)
    torch.export.save(torch.export.export(Adds(), (ONE,)), "good.pt2")
    trap = io.BytesIO()
    torch.save(((Trap(),), {}), trap)
    with zipfile.ZipFile("good.pt2") as good, zipfile.ZipFile("bad.pt2", "w") as bad:
        for entry in good.namelist():
            bad.writestr(entry, trap.getvalue() if "sample_inputs" in entry else good.read(entry))
    with pytest.raises(ImportFailed, match="more than tensors"):
        load("bad.pt2")
    assert not Path("sprung").exists()


def test_layers_that_are_deep_copied_are_built_without_memory(recwarn: pytest.WarningsRecorder) -> None:
    def build() -> tuple[nn.Module, tuple[torch.Tensor]]:
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (torch.randn(2, 4, 16),)

    module, _ = built(build, "encoder")
    weights = list(module.parameters())
    assert not [w for w in recwarn if "without memory" in str(w.message)]
    assert len({id(weight) for weight in weights}) == 2 * 12  # copies are weights of their own
    assert all(isinstance(weight, nn.Parameter) and weight.requires_grad for weight in weights)
