"""Quantities: what is read, what is refused and how it is said."""

from __future__ import annotations

import math

import pytest
from helpers.texts import texts
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from tspsim.base import units
from tspsim.base.errors import UnitError


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("64 GB/s", "bytes/s", 64e9),
        ("400 Gb/s", "bytes/s", 50e9),
        ("400Gbps", "bytes/s", 50e9),
        ("1307.4 TFLOP/s", "FLOP/s", 1307.4e12),
        ("2.5 PFLOPS", "FLOP/s", 2.5e15),
        ("2.1 GHz", "Hz", 2.1e9),
        ("192 GB", "bytes", 192e9),
        ("191.98 GiB", "bytes", 191.98 * 2**30),
        ("5 us", "s", 5e-6),
        ("5 µs", "s", 5e-6),
        ("5 μs", "s", 5e-6),
        ("750 W", "W", 750.0),
        ("1.12 USD/h", "USD/h", 1.12),
        ("173e6 tokens/s", "tokens/s", 173e6),
        ("173 M tokens/s", "tokens/s", 173e6),
        ("128Ki", "count", 131072),
        ("1M", "count", 1_000_000),
        ("1_000", "count", 1000),
        (1e6, "count", 1_000_000),
        ("1e6", "count", 1_000_000),
        ("4m", "s", 240.0),
        ("1.5 m", "s", 90.0),
        ("010", "count", 10),
        (8, "count", 8),
    ],
)
def test_quantity_is_read(text: object, dimension: units.Dimension, value: float) -> None:
    assert units.parse(text, dimension) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("value", "dimension", "says"),
    [
        ("64 gb/s", "bytes/s", "did you mean 'GB/s' or 'Gb/s'?"),
        ("64 GB", "bytes/s", "'64 GB' measures bytes; bytes/s are needed here"),
        ("64", "bytes", "'64' has no unit; write one such as '192 GB'"),
        (64, "bytes", "'64' has no unit"),
        ("64 parsec", "bytes", "unknown unit 'parsec'"),
        ("1e400", "count", "'1e400' is beyond what is read here, 1e-99 to 1e99; write one such as '128Ki'"),
        ("1e308 GiB", "bytes", "'1e308 GiB' is beyond what is read here"),
        ("1e-100 s", "s", "'1e-100 s' is beyond what is read here"),
        ("1e999999999999999999 GB", "bytes", "is beyond what is read here"),
        ("1e99", "count", "'1e99' is larger than any count"),
        ("8.5", "count", "'8.5' is not a whole number"),
        ("8 GB", "count", "'8 GB' measures bytes; a plain count is needed here"),
        ("-4", "count", "'-4' is less than zero"),
        (True, "count", "'True' is not a quantity"),
        (None, "s", "is not a quantity"),
        ([1], "s", "is not a quantity"),
        (math.nan, "count", "not a finite number"),
        (math.inf, "count", "not a finite number"),
        pytest.param(10**5000, "count", "larger than any count", id="huge"),
        ("1e99", "count", "larger than any count"),
        ("fast", "s", "'fast' does not begin with a number"),
        ("9" * 100, "count", "does not begin with a number"),
    ],
)
def test_wrong_quantity_says_what_is_allowed(value: object, dimension: units.Dimension, says: str) -> None:
    with pytest.raises(UnitError) as error:
        units.parse(value, dimension)
    assert says in str(error.value)
    assert len(str(error.value)) < 300


def test_bounds_are_in_the_units_of_the_dimension() -> None:
    assert units.parse("1 us", "s", minimum=1e-6) == 1e-6
    with pytest.raises(UnitError, match=r"less than 1e-06 s"):
        units.parse("1 ns", "s", minimum=1e-6)
    assert units.parse("-1 s", "s", minimum=None) == -1.0
    with pytest.raises(UnitError, match="more than zero"):
        units.parse("0 GB/s", "bytes/s", positive=True)


@given(
    texts() | st.floats() | st.integers() | st.none() | st.booleans(),
    st.sampled_from(sorted(units.EXAMPLES)),
)
def test_anything_is_a_finite_number_or_a_unit_error(value: object, dimension: units.Dimension) -> None:
    try:
        result = units.parse(value, dimension)
    except UnitError as error:
        assert "\n" not in str(error)
    else:
        assert math.isfinite(result)
        assert result >= 0


@given(st.integers(0, 2**43), st.sampled_from(["", "Ki", "k", "M"]))
def test_counts_are_exact(number: int, prefix: str) -> None:
    factor = {"": 1, "Ki": 1024, "k": 1000, "M": 10**6}[prefix]
    if number * factor <= units.LARGEST_COUNT:
        assert units.parse(f"{number}{prefix}", "count") == number * factor


@pytest.mark.parametrize("dimension", sorted(units.EXAMPLES))
def test_every_example_in_a_message_can_be_read(dimension: units.Dimension) -> None:
    for example in units.EXAMPLES[dimension]:
        assert units.parse(example, dimension, positive=True) > 0


class Link(BaseModel):
    rate: units.BytesPerSecond
    latency: units.Seconds = 0.0
    lanes: units.PositiveCount = 1


def test_pydantic_fields_hold_si() -> None:
    link = Link.model_validate({"rate": "64 GB/s", "latency": "2 us", "lanes": "4"})
    assert (link.rate, link.latency, link.lanes) == (64e9, 2e-6, 4)
    with pytest.raises(ValidationError, match="must be more than zero"):
        Link.model_validate({"rate": "0 GB/s"})


def test_json_schema_accepts_what_the_parser_accepts() -> None:
    import re

    schema = Link.model_json_schema()["properties"]
    pattern = re.compile(schema["rate"]["pattern"])
    assert all(pattern.search(example) for example in units.EXAMPLES["bytes/s"])
    assert not pattern.search("64 GB")
    count = re.compile(schema["lanes"]["anyOf"][1]["pattern"])
    assert count.search("128Ki")
    assert not count.search("128 GB")


def test_formatting_chooses_the_unit() -> None:
    assert units.gib(204 * 2**30) == "204.0 GiB"
    assert units.compact(448e9, "B/s") == "448 GB/s"
    assert units.compact(131072) == "131 k"
    assert units.duration(0.0) == "0 s"
    assert units.duration(42.0) == "42.0 s"
    assert units.duration(1200.0) == "20.0 min"


@pytest.mark.parametrize(("share", "text"), [(0.0, "0 %"), (0.0042, "0.4 %"), (0.01, "1 %"), (0.416, "42 %")])
def test_a_share_in_whole_percents_keeps_a_digit(share: float, text: str) -> None:
    assert units.percent(share, decimals=0, significant=1) == text
