"""GGUF files: the package gguf writes them, ours reads them; llama.cpp's rules worked out by hand, and by itself."""

import re
import shlex
import shutil
import struct
import subprocess
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from loadmaster import Cluster, ImportFailed, InvalidSetting, UnreadableFile
from loadmaster.importers.gguf import read_gguf
from loadmaster.serving.fitting import Setup, fit, remedies
from loadmaster.serving.language import Language
from loadmaster.serving.llama_cpp import Forecast, Pricing, best_options
from loadmaster.serving.llama_options import Options, layout, read
from loadmaster.serving.popularity import Popularity
from loadmaster.serving.reading import language_of
from loadmaster.serving.requests import Requests

gguf = pytest.importorskip("gguf")

from tests.gguf_files import write_gguf as write  # noqa: E402

MIB = 2**20
ASKED = Requests(prompt=2048, new=256, batch=1)
ON = "4090:8GiB+3090:6GiB+cpu"


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("dense") / "dense.gguf")


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("mixture") / "mixture.gguf", experts=8)


def best(path: Path, on: str = ON, asked: Requests = ASKED, **settings: Any) -> tuple[Language, Cluster, Forecast]:
    model, cluster = language_of(str(path)), Cluster.preset(on)
    popularity = settings.get("popularity", Popularity(model.experts, model.chosen))
    return model, cluster, best_options(Pricing(model, cluster, asked, popularity), "latency")


def test_the_table_is_the_one_that_was_written(dense: Path, tmp_path: Path) -> None:
    theirs = {tensor.name: (tensor.n_bytes, tuple(tensor.shape)) for tensor in gguf.GGUFReader(dense).tensors}
    found = read_gguf(dense)
    assert {tensor.name: (tensor.nbytes, tensor.shape) for tensor in found.tensors} == theirs
    assert found.metadata["llama.block_count"] == 32 and found.metadata["general.architecture"] == "llama"
    model = language_of(str(dense))
    assert model.weight_bytes == sum(size for size, _ in theirs.values()) and len(model.layers) == 32
    write(tmp_path / "parts.gguf", layers=2, parts=8)
    first, *others = sorted(tmp_path.glob("parts-*.gguf"))
    whole = language_of(str(write(tmp_path / "whole.gguf", layers=2)))
    assert len(others) > 1 and language_of(str(others[0])).layers == whole.layers
    others[-1].unlink()
    with pytest.raises(UnreadableFile, match=r"1 of .* are not there"):
        read_gguf(first)


def test_damaged_files_are_refused_in_words(tmp_path: Path) -> None:
    """Cut anywhere, or with any number of the header huge: an error that names the file, and no memory taken."""
    good = write(tmp_path / "good.gguf", layers=1, words=32).read_bytes()[:3000]
    bad = tmp_path / "bad.gguf"
    for cut in range(0, 3000, 37):
        bad.write_bytes(good[:cut])
        with pytest.raises(UnreadableFile, match=r"bad\.gguf|byte"):
            language_of(str(bad))
    for at in range(4, 1500, 8):
        bad.write_bytes(good[:at] + struct.pack("<Q", 2**63 - 5) + good[at + 8 :])
        with pytest.raises((UnreadableFile, ImportFailed)):
            language_of(str(bad))
    bad.write_bytes(b"PK" + good)
    with pytest.raises(UnreadableFile, match="is no GGUF file"):
        read_gguf(bad)


def cut_by_hand(layers: int, options: Options) -> list[str]:
    """The device of each layer and of the head, in fractions."""
    shares, first = [Fraction(one, sum(options.split)) for one in options.split], layers + 1 - options.offloaded
    ends = [sum(shares[: i + 1]) for i in range(len(shares))]
    found = []
    for layer in range(layers + 1):
        at = Fraction(layer - first, options.offloaded) if layer >= first else Fraction(-1)
        found.append("host" if at < 0 else f"gpu{sum(end <= at for end in ends)}")
    return found


@pytest.mark.parametrize(
    ("offloaded", "split"), [(33, (20, 13)), (33, (33, 0)), (20, (7, 13)), (5, (0, 5)), (33, (1, 2))]
)
def test_layers_are_cut_as_the_options_say(dense: Path, offloaded: int, split: tuple[int, ...]) -> None:
    model, options = language_of(str(dense)), Options(offloaded, split)
    found = layout(model, options, Cluster.preset(ON))
    assert [("gpu0", "gpu1", "host")[d] for d in found.device.tolist()] == cut_by_hand(32, options)
    # Keys and values of a layer: 8 heads of 128 numbers in 16 bits, each for 4,096 tokens.
    assert found.cache.tolist() == [2 * 8 * 128 * 2 * 4096 * (found.device[:-1] == d).sum() for d in range(3)]


def test_plans_say_what_they_are_and_fit(dense: Path, mixture: Path) -> None:
    for path in (dense, mixture):
        for on in (ON, "4090", "3090:5GiB+cpu", "cpu"):
            for asked in (ASKED, Requests(prompt=20000, new=1000, batch=1), Requests(prompt=1024, new=64, batch=4)):
                model, cluster, found = best(path, on, asked)
                assert read(found.options.command(model), model) == found.options
                assert found.fits == bool((found.layout.peak_bytes <= cluster.memory_bytes).all()) or on == "4090"
                assert found.layout.weights.sum() >= model.weight_bytes or on == "4090"
                assert found.prefill_ns[0] <= found.prefill_ns[1] <= found.prefill_ns[2]
    with pytest.raises(InvalidSetting, match="'-dev'"):
        read("llama-server -m x -ngl 3 -c 4096 -dev none", model)


@pytest.mark.parametrize("second", ["2.6GiB", "3GiB", "3.4GiB", "4GiB"])
def test_the_cut_is_the_best_of_all_there_are(dense: Path, second: str) -> None:
    """Every -ts of two GPUs, tried: where one fits with all layers, ours is as fast as the fastest of those."""
    model, _, found = best(dense, on := f"4090:4GiB+3090:{second}+cpu")
    pricing = Pricing(model, Cluster.preset(on), ASKED, Popularity(0, 0))
    options = [Options(33, (first, 33 - first), (), 2304) for first in range(34)]
    tried = [one for one in (pricing.forecast(each, "latency") for each in options) if one.fits]
    assert found.fits and (not tried or found.options.key == "f16")
    assert not tried or found.value <= min(one.value for one in tried) * (1 + 1e-9)
    assert bool(tried) == (found.options.offloaded == 33 and not found.options.away and found.options.key == "f16")


def test_experts_stay_on_the_host_before_layers_do(mixture: Path) -> None:
    model, _, found = best(mixture)
    assert found.fits and found.options.offloaded == 33 and found.options.away == tuple(range(len(found.options.away)))
    assert f"--n-cpu-moe {len(found.options.away)}" in found.options.command(model)
    # Routing that is focused in the last four layers: a step of 8 sequences needs few of their experts.
    equal, focused = (100,) * 8, (1000, 1000, 1, 1, 1, 1, 1, 1)
    counted = Popularity(8, 2, ((equal,) * 28) + ((focused,) * 4))
    model, _, found = best(mixture, asked=Requests(prompt=512, new=64, batch=8), popularity=counted)
    assert {28, 29, 30, 31} <= set(found.options.away) and "-ot" in found.options.command(model)


def test_a_window_keeps_less(tmp_path: Path) -> None:
    """gemma2: every other layer looks back 1,024 tokens, for which llama.cpp keeps 512 more, in steps of 256."""
    model = language_of(str(write(tmp_path / "window.gguf", "gemma2", layers=4, window=1024, words=64)))
    found = layout(model, Options(5, context=8192), Cluster.preset("4090"))
    assert found.cache.tolist() == [2 * 8 * 128 * 2 * 2 * (8192 + 1536)]


def test_every_advice_makes_it_fit(dense: Path) -> None:
    model = language_of(str(dense))
    assert fit(Setup(model, Cluster.preset("4090"), ASKED)).fits
    tight = Setup(model, Cluster.preset("3090:5GiB"), Requests(prompt=8192, new=64, batch=2))
    found, told = fit(tight), list(remedies(tight))
    assert not found.fits and found.need_bytes > found.have_bytes and told
    assert [change.cost for change in told] == sorted(change.cost for change in told)
    for change in told:
        typed = dict(re.findall(r"--(\w+) (\S+)", change.command))
        setup = Setup(
            model, Cluster.preset(typed.get("on", "3090:5GiB")), Requests.of(typed.get("serve", str(tight.requests)))
        )
        assert fit(Setup(setup.model, setup.cluster, setup.requests, typed.get("cache", "f16"))).fits


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """Two devices of llama.cpp on this machine, so that its own loader cuts a model among them."""
    if not shutil.which("llama-fit-params") or not shutil.which("ggml-rpc-server"):
        pytest.skip("llama.cpp with RPC is not installed")
    ports = ("50172", "50173")
    running = [subprocess.Popen(["ggml-rpc-server", "-p", port], stdout=subprocess.DEVNULL) for port in ports]
    yield ",".join(f"127.0.0.1:{port}" for port in ports)
    for process in running:
        process.kill()


@pytest.mark.full
@pytest.mark.parametrize("on", [ON, "1x4090+1x3090+cpu", "4090:5GiB+3090:4GiB+cpu"])
def test_llama_cpp_puts_it_where_the_plan_says(servers: str, dense: Path, mixture: Path, on: str) -> None:
    """Its own account of memory: weights and cache to the MiB, compute buffers never above ours."""
    for path in (dense, mixture):
        model, _, found = best(path, on)
        words = shlex.split(found.options.command(model))[1:]
        run = ["llama-fit-params", *words, "--rpc", servers, "-fitp", "on", "-lv", "5"]
        said = subprocess.run(run, capture_output=True, text=True, timeout=60)
        rows = re.findall(r"^RPC(\d) (\d+) (\d+) (\d+)", said.stdout, re.M)
        assert len(rows) == 2, said.stderr[-500:]
        for gpu, weights, cache, compute in ([int(one) for one in row] for row in rows):
            assert abs(weights - found.layout.weights[gpu] / MIB) <= 2
            assert abs(cache - found.layout.cache[gpu] / MIB) <= 2
            assert compute <= found.layout.reserve[gpu] / MIB
        places = dict(re.findall(r"layer +(\d+) assigned to device (\w+)", said.stderr + said.stdout))
        wanted = [("RPC0", "RPC1", "CPU")[d] for d in found.layout.device.tolist()]
        assert [places[str(i)] for i in range(len(wanted))] == wanted
