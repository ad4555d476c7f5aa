"""A type of numbers says itself on whose instructions it is multiplied, and whose kernels read it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tspsim.base.errors import InputError
from tspsim.base.stated import Stated
from tspsim.hardware import Device, load_device
from tspsim.operators import DTYPES, DataType, Gemm


@pytest.fixture
def newcomers() -> Iterator[tuple[str, str]]:
    """One that runs as fp8 anywhere, and one in blocks whose scales the matrix units have to apply."""
    names = "fp8_mine", "mx_mine"
    DTYPES.register(DataType(names[0], 1.0, multiplied_as="fp8", similar=("fp8",), widened_to=("bf16",)))
    DTYPES.register(DataType(names[1], 1.0, multiplied_as="fp8", similar=("fp8",), block_scaled=True))
    yield names
    for name in names:
        DTYPES.remove(name)


def test_a_type_has_the_peak_of_the_instructions_that_it_names(newcomers: tuple[str, str]) -> None:
    plain, scaled = newcomers
    h100, mi355x, a100 = map(load_device, ("h100", "mi355x", "a100-80gb"))
    assert h100.peak_of(plain) == h100.peak_of("fp8")
    assert mi355x.peak_of(scaled) == mi355x.peak_of("fp8")
    # Hopper has no instructions for numbers in blocks with a scale, and Ampere none for fp8.
    with pytest.raises(InputError, match=rf"h100 has no {scaled}; it has .*{plain}"):
        h100.peak_of(scaled)
    with pytest.raises(InputError, match=f"has no {plain}"):
        a100.peak_of(plain)


@pytest.mark.parametrize("wider", [(), ("bf16",)])
def test_kernels_of_a_wider_type_read_it_where_they_are_faster(wider: tuple[str, ...]) -> None:
    """Matrix units of a hundredth of the rate: products take those of bf16 if the type says so."""
    h100 = load_device("h100")
    peak = {**h100.spec.peak, "slow_mine": Stated[float](value=1e13, source="a test")}
    device = Device(h100.spec.model_copy(update={"peak": peak}), h100.relatives)
    DTYPES.register(DataType("slow_mine", 2.0, similar=("bf16",), widened_to=wider))
    try:
        slow, usual = (device.time(Gemm(4096, 4096, 4096, dtype)).seconds for dtype in ("slow_mine", "bf16"))
    finally:
        DTYPES.remove("slow_mine")
    assert slow == usual if wider else slow > 10.0 * usual
