"""jax functions as graphs, where jax is installed; without it the error names the extra."""

import importlib.util

import pytest

from loadmaster import MissingExtra
from loadmaster.importers.hlo.load import load_jax


@pytest.mark.skipif(importlib.util.find_spec("jax") is not None, reason="jax is installed")
def test_without_jax_the_extra_is_named() -> None:
    with pytest.raises(MissingExtra, match=r"loadmaster\[jax\]"):
        load_jax(lambda x: x, (1.0,))


def test_a_function_and_its_gradient() -> None:
    jax = pytest.importorskip("jax")
    numpy = pytest.importorskip("jax.numpy")

    def loss(weight, x):  # type: ignore[no-untyped-def]
        return numpy.tanh(x @ weight).sum()

    given = (numpy.ones((64, 32)), numpy.ones((16, 64)))
    forward, both = load_jax(loss, given), load_jax(jax.grad(loss), given)
    product = 2 * 16 * 64 * 32
    assert product <= forward.flops.sum() <= 1.2 * product  # and tanh and the sum
    assert 2 * product <= both.flops.sum() <= 2.4 * product  # the same, and its gradient by the weight
    assert any("dot" in kind or "fusion" in kind for kind in both.kind)
