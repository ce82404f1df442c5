"""Specs: what brackets hold, and the way back."""

from __future__ import annotations

import pytest

from loadmaster.baselines.lists.schedulers import Etf, Heft
from loadmaster.baselines.simple import BestOf
from loadmaster.catalog.specs import make_method, spec_of


@pytest.mark.parametrize(
    ("text", "methods"),
    [
        ("[heft,etf]", (Heft(), Etf())),
        ("[[heft:thrift=0.5],[heft:thrift=1,memory=yes]]", (Heft(thrift=0.5), Heft(thrift=1.0, memory=True))),
        ("[etf,[heft:thrift=0.5]]", (Etf(), Heft(thrift=0.5))),
        ("heft", (Heft(),)),
    ],
)
def test_only_the_outer_brackets_of_a_list_go(text: str, methods: tuple[object, ...]) -> None:
    assert make_method(f"best-of:of={text}") == BestOf(methods)  # type: ignore[arg-type]


def test_what_a_spec_makes_says_the_spec_again() -> None:
    for spec in ("heft", "best-of:of=[heft,etf]", "anneal:start=etf"):
        made = make_method(spec)
        assert make_method(spec_of(made)) == made
