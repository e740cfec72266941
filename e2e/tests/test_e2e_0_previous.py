"""Choice of the previous agents' version; needs no cluster."""

from sos_e2e import previous


def test_what_is_asked_for_goes_before_the_newest_release_and_that_before_the_fixed_commit() -> None:
    assert previous.chosen("abc", "v1.2.0") == "abc"
    assert previous.chosen(None, "v1.2.0") == "v1.2.0"
    assert previous.chosen(None, "") == previous.FIXED
