from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from sos_compile.manifests import naming

LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True) | st.sampled_from(["a", "b", "a-b", "b-c", "a.b", "default"])
BUILDERS = [naming.controller, naming.controller_keys, naming.controller_token, naming.controller_openflow, naming.site_keys, naming.node]


@given(NAMES, NAMES)
def test_names_are_labels_of_at_most_63_characters(first: str, second: str) -> None:
    for name in [*(build("sos", first) for build in BUILDERS), naming.agent("sos", first, second), naming.network("sos", first)]:
        assert LABEL.match(name)
        assert len(name) <= 63


@given(st.lists(st.tuples(NAMES, NAMES), unique=True, min_size=2, max_size=6))
def test_different_objects_have_different_names(pairs: list[tuple[str, str]]) -> None:
    assert len({naming.agent("sos", *pair) for pair in pairs}) == len(pairs)
    singles = {name for pair in pairs for name in pair}
    every = [build("sos", name) for build in BUILDERS for name in singles] + [naming.agent("sos", *pair) for pair in pairs]
    assert len(set(every)) == len(every)


def test_short_names_are_readable() -> None:
    assert naming.controller("sos", "default") == "sos-controller-default"
    assert naming.node("sos", "west") == "sos-node-west"
    assert naming.agent("sos", "default", "west") == "sos-agent-default-west"
    assert naming.network("sos", "west") == "sos-west"
    assert naming.site_keys("sos", "west") == "sos-sitekeys-west"


def test_names_do_not_change_between_versions() -> None:
    """Renaming a child object would delete the old object and create a new one, which is an outage for Open vSwitch."""
    assert naming.agent("sos", "a-b", "c") == "sos-agent-a-b-c-95509ad9"
    assert naming.node("sos", "x" * 63) == "sos-node-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-55fcc80b"
