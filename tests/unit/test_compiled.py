"""The cache of compiled code: it never serves what was made from other sources, and nobody needs it."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import pkgutil
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from loadmaster import compiled as door
from loadmaster.compiled import cache, entries

INNER = "from loadmaster.compiled import compiled\n@compiled{options}\ndef inner(x):\n    return x {sign} 1\n"
OUTER = """\
from loadmaster.compiled import compiled
from inner_{tag} import inner
import inner_{tag} as whole
TIMES = {times}
@compiled
def outer(x):
    return inner(x) * TIMES + whole.inner(0)
"""


class Kernels:
    """Two modules of kernels in a folder, written anew and imported afresh."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.tag = folder, folder.name.replace("-", "_")
        self.misses = 0
        monkeypatch.setenv("LOADMASTER_CACHE", str(folder / "cache"))
        monkeypatch.syspath_prepend(str(folder))

    def run(self, sign: str = "+", times: int = 10, options: str = "") -> int:
        """outer(4) of these sources; counts what had to be compiled."""
        inner = INNER.format(sign=sign, options=options)
        self._import(f"inner_{self.tag}", inner)
        outer = self._import(f"outer_{self.tag}", OUTER.format(times=times, tag=self.tag))
        with door.telling(self._count):
            return int(outer.outer(4))

    def _count(self) -> None:
        self.misses += 1

    def _import(self, name: str, text: str) -> ModuleType:
        path = self.folder / f"{name}.py"
        path.write_text(text)
        sys.modules.pop(name, None)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        exec(compile(text, str(path), "exec"), module.__dict__)
        return module

    @property
    def entries(self) -> list[Path]:
        return sorted((self.folder / "cache" / "compiled").glob("*"))


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernels:
    return Kernels(tmp_path, monkeypatch)


def test_an_edited_callee_in_another_file_is_never_served_stale(kernels: Kernels) -> None:
    assert kernels.run() == 5 * 10 + 1
    first = kernels.misses
    assert kernels.run() == 5 * 10 + 1
    assert kernels.misses == first, "the same sources are compiled once"
    assert kernels.run(sign="-") == 3 * 10 - 1
    assert kernels.run(sign="*") == 4 * 10 + 0
    assert kernels.run() == 5 * 10 + 1


def test_a_frozen_constant_is_part_of_the_sources(kernels: Kernels) -> None:
    assert kernels.run(times=10) == 51
    assert kernels.run(times=7) == 36


def test_words_of_a_kernel_are_no_part_of_its_sources_unless_it_reads_them(kernels: Kernels) -> None:
    for result in ("x + 1", "x + 2", "x + len({words!r})"):
        misses = []
        for words in ("short", "longer words"):
            shown = result.format(words=words)
            head = "from loadmaster.compiled import compiled\n@compiled\n"
            text = f"{head}def told(x):\n    {words!r}\n    return {shown}\n"
            made = kernels._import(f"told_{kernels.tag}", text)
            with door.telling(kernels._count):
                assert made.told(4) == eval(shown, {"x": 4})
            misses.append(kernels.misses)
        assert (misses[1] > misses[0]) == ("len" in result)


def test_options_of_a_callee_are_part_of_the_sources(kernels: Kernels) -> None:
    kernels.run()
    before = kernels.misses
    assert kernels.run(options="(error_model='numpy')") == 51
    assert kernels.misses > before


def test_what_is_called_apart_is_brought_along_and_made_again_where_it_is_gone(kernels: Kernels) -> None:
    apart = "(apart=True)"
    assert kernels.run(options=apart) == 51
    first = kernels.misses
    assert kernels.run(options=apart) == 51
    assert kernels.misses == first, "both are in the cache"
    assert kernels.run(options=apart, sign="-") == 29
    (inner,) = [
        path for path in kernels.entries if "inner" in path.name and path.stat().st_mtime_ns == _oldest(kernels)
    ]
    inner.unlink()
    assert kernels.run(options=apart) == 51, "its caller is not served with code that calls what is gone"


def _oldest(kernels: Kernels) -> int:
    return min(path.stat().st_mtime_ns for path in kernels.entries if "inner" in path.name)


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "foreign"])
def test_a_damaged_entry_is_compiled_again(kernels: Kernels, damage: str) -> None:
    kernels.run()
    for path in kernels.entries:
        data = path.read_bytes()
        flipped = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
        new = {"truncated": data[: len(data) // 2], "empty": b"", "flipped": flipped, "foreign": b"\x80\x04N."}
        path.write_bytes(new[damage])
    before = kernels.misses
    assert kernels.run() == 51
    assert kernels.misses > before
    again = kernels.misses
    assert kernels.run() == 51
    assert kernels.misses == again, "the entries were repaired"


def test_without_a_place_for_a_cache_it_works_and_says_so_once(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LOADMASTER_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(entries, "_TOLD", set())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert kernels.run() == 51
        assert kernels.run(times=3) == 16
    said = [str(warning.message) for warning in told if "slower" in str(warning.message)]
    assert len(said) == 1
    assert "LOADMASTER_CACHE" in said[0] and str(tmp_path / "file") in said[0]


def test_entries_that_nobody_used_for_long_are_removed(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels.run()
    old = next(path for path in kernels.entries if path.name.startswith("outer"))
    os.utime(old, (0, 0))
    monkeypatch.setattr(entries, "_REMOVED", set())
    kernels.run(times=2)
    assert not old.exists()


SWAPPED = """\
from typing import NamedTuple
from loadmaster.compiled import compiled
class Pair(NamedTuple):
    {first}: int
    {second}: int
@compiled
def left(pair):
    return pair.left
"""


@pytest.mark.parametrize("kind", ["NamedTuple", "Struct"])
def test_the_fields_of_a_named_tuple_or_struct_are_part_of_its_type(kernels: Kernels, kind: str) -> None:
    for first, second, answer in (("left", "right", 1), ("right", "left", 2), ("left", "right", 1)):
        text = SWAPPED.format(first=first, second=second).replace("(NamedTuple)", f"({kind})")
        module = kernels._import(f"pair_{kernels.tag}", "from loadmaster.compiled import Struct\n" + text)
        assert module.left(module.Pair(1, 2)) == answer


def test_how_functions_become_code_is_part_of_the_sources(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels.run()
    before = kernels.misses
    kernels.run()
    assert kernels.misses == before
    read = Path.read_bytes
    edited = lambda path: read(path) + b"#" * (path.name == "structs.py")  # noqa: E731
    monkeypatch.setattr(Path, "read_bytes", edited)
    monkeypatch.setattr(cache, "_VERSIONS", (*cache._VERSIONS[:-1], cache._own_text()))
    kernels.run()
    assert kernels.misses > before


def test_a_named_tuple_that_moved_is_compiled_anew(kernels: Kernels) -> None:
    """As in a later version of the package: the entry of the former one names a module that is gone."""
    text = SWAPPED.format(first="left", second="right")
    before = kernels._import(f"before_{kernels.tag}", text)
    assert before.left(before.Pair(1, 2)) == 1
    del sys.modules[f"before_{kernels.tag}"]
    after = kernels._import(f"after_{kernels.tag}", text)
    for path in kernels.entries:  # whatever it is called now
        path.rename(path.with_name(path.name.replace("before_", "after_")))
    assert after.left(after.Pair(1, 2)) == 1


def test_an_entry_that_names_what_is_gone_is_as_good_as_absent(tmp_path: Path) -> None:
    payload = b"cno_such_module\nthing\n."
    (tmp_path / "entry").write_bytes(entries.MAGIC + hashlib.sha256(payload).digest() + payload)
    assert cache._read(tmp_path / "entry") is None


CONSTANTS = """\
from loadmaster.compiled import compiled
@compiled
def twice(x, really):
    return 2 * x if really else x
@compiled
def both(x):
    return twice(x, True) + twice(x, False) + twice(7, True)
"""


def test_constants_of_a_caller_make_no_versions(kernels: Kernels) -> None:
    module = kernels._import(f"constants_{kernels.tag}", CONSTANTS)
    assert module.both(1) == 2 + 1 + 14 and module.twice(3, True) == 6
    assert len(module.twice.for_callers.signatures) == len(module.twice.signatures) == 1


PARTS = """\
import numpy as np
from loadmaster.compiled import compiled
@compiled
def least(values):
    if len(values) == 0:
        raise ValueError("nothing to choose from")
    best = values[0]
    for value in values:
        best = min(best, value)
    return best
@compiled
def scaled(values, by):
    return least(values) * by * {times}
"""


def test_what_only_compiled_functions_call_is_linked_kept_and_still_there_for_python(kernels: Kernels) -> None:
    """Twice from sources, then a caller with another constant, whose part comes from the disk."""
    for times, missing in ((1, 2), (1, 0), (3, 1)):
        module = kernels._import(f"parts_{kernels.tag}", PARTS.format(times=times))
        kernels.misses = 0
        with door.telling(kernels._count):
            assert module.scaled(np.array([5, 2, 9]), 10) == 20 * times
        assert kernels.misses == missing
        assert not module.least.overloads
        with pytest.raises(ValueError, match="nothing to choose from"):
            module.scaled(np.array([], np.int64), 10)
        assert module.least(np.array([3, 4])) == 3
        assert module.scaled(np.array([4.0, 3.0]), 2) == 6 * times


PROBE = """\
import numpy as np
from loadmaster.compiled import compiled
from loadmaster.graph.order import followers
@compiled
def probe(start, before):
    return followers(start, before)[1].sum()
print(probe(np.array([0, 0, 1, 2]), np.array([0, 1])))
"""


def test_an_edit_of_the_package_shows_without_clearing_anything(tmp_path: Path) -> None:
    """The same with a copy of the package, in processes of their own: a walk over the graph is edited, and a loop in
    another file that calls it gives the new answer."""
    source = Path(door.__file__).parent.parent
    shutil.copytree(source, tmp_path / "loadmaster", ignore=shutil.ignore_patterns("graphs", "weights", "__pycache__"))
    order, probe = tmp_path / "loadmaster" / "graph" / "order.py", tmp_path / "probe.py"
    probe.write_text(PROBE)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "LOADMASTER_CACHE": str(tmp_path / "cache")}

    def answer() -> str:
        done = subprocess.run([sys.executable, probe], env=environment, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert answer() == answer() == "3"
    text = order.read_text()
    assert text.count("follow[fill[before[at]]] = row\n") == 1
    order.write_text(text.replace("follow[fill[before[at]]] = row\n", "follow[fill[before[at]]] = 10 * row\n"))
    assert answer() == "30"


ROOMS = ("graph", "passes", "problem", "simulator", "methods.annealing", "baselines.fusion")


@pytest.mark.parametrize("room", ROOMS)
def test_every_loop_is_kept_in_the_cache(room: str) -> None:
    """A loop that freezes what has no digest is compiled again in every process, and so is all that calls it."""
    package = importlib.import_module(f"loadmaster.{room}")
    found = 0
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for name, loop in vars(importlib.import_module(info.name)).items():
            if hasattr(loop, "py_func"):
                found += 1
                assert cache.digest_of(loop.py_func, (), {}) is not None, f"{info.name}.{name}"
    assert found


LOOP = "simulator.contraction._run_many"


@pytest.mark.parametrize("maker", ["writes", "dies"])
def test_a_loop_that_another_process_makes_is_waited_for_and_no_longer(
    maker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADMASTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(entries, "_MADE_BESIDE", {})
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    entry = tmp_path / "cache" / "compiled" / f"{LOOP}-0.nbc"
    entry.parent.mkdir(parents=True)
    work = f"pathlib.Path({str(entry)!r}).write_bytes(b'')" if maker == "writes" else "sys.exit(1)"
    (tmp_path / "other_maker.py").write_text(f"import pathlib, sys, time\ntime.sleep(0.3)\n{work}\n")
    entries.make_beside("other_maker", (LOOP,))
    assert not entries.made_beside("simulator.loop.run", entry), "nobody makes that one"
    assert entries.made_beside(LOOP, entry) == (maker == "writes")
    monkeypatch.setattr(entries, "_MADE_BESIDE", {})
    entries.make_beside("other_maker", (LOOP,))
    assert bool(entries._MADE_BESIDE) == (maker == "dies"), "what is there is not made again"
