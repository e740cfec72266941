"""Failure rule of the soak, tested with synthetic series; needs no cluster."""

import math
import random

import pytest
from sos_e2e.observation.growth import ALLOWED, LEAST, MIB, SHARE, TooFewError, leaks, trend

MINUTE = 60.0
HOUR = 65  # samples of an hour's soak, one per round


def series(values: list[float]) -> list[tuple[float, float]]:
    return [(number * MINUTE * 60 / HOUR, value) for number, value in enumerate(values)]


def memory(values: list[float]) -> list[str]:
    return leaks({"memory of a/b": series(values)})


def noise(seed: int, height: float) -> list[float]:
    dice = random.Random(seed)
    return [dice.uniform(-height, height) for _ in range(HOUR)]


@pytest.mark.parametrize("seed", range(20))
def test_a_leak_is_found_under_noise_of_similar_height(seed: int) -> None:
    leak = 2.0 * 8 * MIB / (HOUR * 2 / 3)  # twice the allowed growth, over the judged time
    assert memory([50 * MIB + leak * n + off for n, off in enumerate(noise(seed, 8 * MIB))])


def test_a_leak_of_one_socket_per_round_is_reported() -> None:
    (said,) = leaks({"sockets of agent/agent": series([7.0 + n for n in range(HOUR)])})
    assert said.startswith("sockets of agent/agent: grew by 4") and "5 are allowed (median 50" in said


@pytest.mark.parametrize("kind", ALLOWED)
def test_a_leak_is_found_in_the_shortest_run_that_is_judged(kind: str) -> None:
    rise = 2 * ALLOWED[kind] / (LEAST - 1)
    assert leaks({f"{kind} of a/b": series([rise * n for n in range(LEAST * 3 // 2)])})


@pytest.mark.parametrize("seed", range(100))
def test_noise_of_any_height_is_no_leak(seed: int) -> None:
    assert not memory([500 * MIB + off for off in noise(seed, 400 * MIB)])


def test_saturating_growth_is_no_leak() -> None:
    assert not memory([100 * MIB * (1 - math.exp(-n / (HOUR / 9))) for n in range(HOUR)])


def test_falling_or_constant_series_is_no_leak() -> None:
    assert not memory([90 * MIB - n * MIB for n in range(HOUR)])
    assert not memory([90.0 * MIB] * HOUR)
    assert trend(series([7.0] * HOUR), 5.0).z == 0.0


def test_growth_within_the_limit_is_no_leak() -> None:
    assert not memory([50 * MIB + n * 0.9 * 8 * MIB / (HOUR * 2 / 3) for n in range(HOUR)])
    large = 1_000 * MIB
    assert not memory([large + n * 0.9 * SHARE * large / (HOUR * 2 / 3) for n in range(HOUR)]), "a tenth of the median is allowed"


def test_a_single_outlier_is_no_leak() -> None:
    for at in (0, HOUR // 2, HOUR - 1):
        assert not memory([50 * MIB + (900 * MIB if n == at else 0) for n in range(HOUR)])


def test_a_sawtooth_is_a_leak_only_if_it_rises() -> None:
    saw = [20 * MIB + (n % 6) * 4 * MIB for n in range(HOUR)]
    assert not memory([float(value) for value in saw])
    assert memory([value + n * MIB for n, value in enumerate(saw)])


def test_too_few_samples_are_an_error() -> None:
    with pytest.raises(TooFewError, match="11 samples leave 7"):
        leaks({"files of a/b": series([1.0] * 11)})
    with pytest.raises(TooFewError):
        leaks({"files of a/b": []})
