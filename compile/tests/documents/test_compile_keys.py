from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sos_compile import keys
from sos_compile.artifacts import ROOT

VECTORS: list[dict[str, Any]] = json.loads((ROOT / "spec" / "vectors" / "keys" / "v1.json").read_text())
MASTER = bytes(range(32))
IDS = st.integers(1, 0xFFFF)


@pytest.mark.parametrize("vector", [v for v in VECTORS if set(v["fields"]) == {"key", "info"}], ids=lambda v: v["name"])
def test_key_derivation_matches_the_vectors(vector: dict[str, Any]) -> None:
    fields = vector["fields"]
    assert keys.expand(bytes.fromhex(fields["key"]), bytes.fromhex(fields["info"])).hex() == vector["hex"]


def test_named_keys_match_the_vectors() -> None:
    by_name = {vector["name"]: vector["hex"] for vector in VECTORS}
    agent = keys.agent_id("west", "default", "edge1")
    site = keys.site_key(MASTER, 1)
    assert site.hex() == by_name["site 1"]
    assert keys.pair_key(MASTER, 2, 1).hex() == by_name["pair 1,2"]
    assert keys.beacon_key(site, agent).hex() == by_name["beacon"]
    assert keys.order_key_to_agent(site, agent).hex() == by_name["order/c2a"]
    assert keys.order_key_from_agent(site, agent).hex() == by_name["order/a2c"]


@given(IDS, IDS)
def test_both_ends_of_a_pair_have_the_same_key(a: int, b: int) -> None:
    assert keys.pair_key(MASTER, a, b) == keys.pair_key(MASTER, b, a)


@given(st.sets(IDS, min_size=1, max_size=5), st.integers(1, 0xFFFF))
def test_key_folders_contain_only_permitted_keys(site_ids: set[int], key_id: int) -> None:
    own = min(site_ids)
    files = keys.files_for_site(MASTER, key_id, own, site_ids)
    assert set(files) == {f"site-{key_id}"} | {f"pair-{peer}-{key_id}" for peer in site_ids - {own}}
    assert set(keys.files_for_controller(MASTER, key_id, site_ids)) == {f"site-{site}-{key_id}" for site in site_ids}
    assert all(len(bytes.fromhex(text)) == 32 for text in files.values())
    for peer in site_ids - {own}:
        assert files[f"pair-{peer}-{key_id}"] == keys.files_for_site(MASTER, key_id, peer, [own])[f"pair-{own}-{key_id}"]
    assert MASTER.hex() not in files.values()


@pytest.mark.parametrize("bad", [0, -1, 65536])
def test_site_and_key_ids_out_of_range_are_refused(bad: int) -> None:
    with pytest.raises(ValueError, match="site id"):
        keys.site_key(MASTER, bad)
    with pytest.raises(ValueError, match="key id"):
        keys.files_for_controller(MASTER, bad, [1])


def test_short_master_key_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        keys.site_key(b"short", 1)
