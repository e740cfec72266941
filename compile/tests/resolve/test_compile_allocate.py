from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

from hypothesis import assume, given
from hypothesis import strategies as st
from sos_compile.resolve.allocate import highest_free, numbers, usable

KEYS = st.lists(st.sampled_from("abcdefgh"), max_size=8)


@given(
    KEYS,
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(-2, 12)),
    st.sets(st.integers(0, 12)),
    st.integers(0, 4),
    st.integers(4, 10),
)
def test_numbers_are_distinct_within_bounds_and_kept(
    wanted: list[str], previous: dict[str, int], reserved: set[int], low: int, high: int
) -> None:
    given_numbers = numbers(wanted, previous, reserved, (low, high))
    assert set(given_numbers) <= set(wanted)
    assert len(set(given_numbers.values())) == len(given_numbers)
    assert all(low <= number <= high and number not in reserved for number in given_numbers.values())
    free = high - low + 1 - len({number for number in reserved if low <= number <= high})
    assert len(given_numbers) == min(len(set(wanted)), free)
    for key in wanted:
        number = previous.get(key)
        rivals = [other for other in wanted[: wanted.index(key)] if other != key and previous.get(other) == number]
        if number is not None and low <= number <= high and number not in reserved and not rivals and key in given_numbers:
            assert given_numbers[key] == number


@given(KEYS, st.sets(st.integers(1, 9)))
def test_earlier_numbers_are_kept(wanted: list[str], reserved: set[int]) -> None:
    first = numbers(wanted, {}, reserved, (1, 9))
    assert numbers(reversed(wanted), first, reserved, (1, 9)) == first


def test_new_numbers_are_the_lowest_free_in_order() -> None:
    assert numbers(["c", "a", "b"], {"b": 2}, {1}, (1, 9)) == {"b": 2, "c": 3, "a": 4}


NETWORKS = st.builds(lambda start, length: IPv4Network((start, length), strict=False), st.integers(0, 2**32 - 1), st.integers(24, 32))


@given(NETWORKS, st.integers(0, 6), st.sets(st.integers(0, 255), max_size=40))
def test_highest_usable_address_is_found(pool: IPv4Network, shorter: int, offsets: set[int]) -> None:
    subnet = pool.supernet(new_prefix=pool.prefixlen - shorter)
    taken = {pool[offset % pool.num_addresses] for offset in offsets}
    expected = next((address for address in reversed(list(pool)) if address not in taken and usable(address, pool, subnet)), None)
    assert highest_free(pool, subnet, taken) == expected


@given(NETWORKS)
def test_network_and_broadcast_addresses_are_never_assigned(pool: IPv4Network) -> None:
    assume(pool.prefixlen < 31)
    assert not usable(pool[0], pool, pool)
    assert not usable(pool[-1], pool, pool)
    assert usable(pool[1], pool, pool)


def test_large_pool_is_searched_without_iterating_over_it() -> None:
    pool = IPv4Network("10.0.0.0/8")
    assert highest_free(pool, pool, {IPv4Address("10.255.255.254")}) == IPv4Address("10.255.255.253")
