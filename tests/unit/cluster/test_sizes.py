"""Sizes as people write them."""

import pytest

from loadmaster.cluster.cluster import parse_size
from loadmaster.errors import InvalidSetting


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("16GiB", 16 * 2**30),
        ("512 MiB", 512 * 2**20),
        ("2GB", 2 * 10**9),
        ("1.5kib", 1536),
        ("1048576B", 2**20),
        ("7b", 7),
    ],
)
def test_sizes_as_people_write_them(text, nbytes):
    assert parse_size(text, "--memory-limit") == nbytes


@pytest.mark.parametrize(
    "text", ["", "16", "1048576", "GiB", "16 gigs", "-1GiB", "1e9", "0", "0GiB", "99999TiB", "nan", "16GiB extra"]
)
def test_other_words_are_refused_with_an_example(text):
    with pytest.raises(InvalidSetting) as caught:
        parse_size(text, "--memory-limit")
    assert caught.value.where == "--memory-limit"
    assert caught.value.fix
