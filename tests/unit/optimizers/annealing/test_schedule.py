"""How long coolings are, whatever the budget."""

from __future__ import annotations

from itertools import islice, pairwise

from loadmaster.optimizers.annealing.chains import epochs


def test_each_cooling_is_half_as_long_again_as_the_one_before() -> None:
    assert list(islice(epochs(), 4)) == [192, 288, 432, 648]
    lengths = list(islice(epochs(100), 12))
    assert lengths[0] == 100 and all(1.45 < later / earlier < 1.55 for earlier, later in pairwise(lengths))
