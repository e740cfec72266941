"""Choice of the previous agents' version; needs no cluster."""

from sos_e2e.environment import previous_version


def test_previous_version_is_the_requested_one_else_newest_release_else_fixed_commit() -> None:
    assert previous_version.chosen("abc", "v1.2.0") == "abc"
    assert previous_version.chosen(None, "v1.2.0") == "v1.2.0"
    assert previous_version.chosen(None, "") == previous_version.FIXED
