import pytest

from loadmaster.report.units import count_text, percent_text, size_text, sizes_text, time_text


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (74, "74 ns"),
        (999, "999 ns"),
        (1_000, "1.00 us"),
        (12_345, "12.3 us"),
        (999_499, "999 us"),
        (999_500, "1.00 ms"),
        (1_240_000, "1.24 ms"),
        (9_996_000, "10.0 ms"),
        (2_500_000_000, "2.50 s"),
        (3_600_000_000_000, "3600 s"),
    ],
)
def test_times_have_three_digits(ns, text):
    assert time_text(ns) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (2**30, "1.00 GiB"),
        (16 * 2**30, "16.0 GiB"),
    ],
)
def test_sizes_are_binary(nbytes, text):
    assert size_text(nbytes) == text


def test_sizes_of_devices_share_the_unit_of_the_largest():
    assert sizes_text([3 * 2**30, 2**29, 0]) == "3.00 0.50 0 GiB"
    assert sizes_text([0, 0]) == "0 0 B"
    assert sizes_text([2**20 * n for n in range(1, 10)]) == "1.00 to 9.00 MiB"


def test_counts_and_shares():
    assert count_text(1_240_000_000_000, "FLOP") == "1.24 TFLOP"
    assert count_text(7, "FLOP") == "7 FLOP"
    assert percent_text(0.1234) == "+12.3 %"
    assert percent_text(float("inf")) == "-"
