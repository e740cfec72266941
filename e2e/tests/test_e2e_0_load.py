"""What the load's records mean; needs no cluster."""

from sos_e2e.load import longest_stall, parse_probes, silent_at_last


def test_probes_are_read_in_the_order_in_which_they_began() -> None:
    first, second = parse_probes("12.5 28 0.0 15.001 0\n2.25 0 0.161 0.322 71\n")
    assert (first.at, first.status, first.connect_s, first.total_s, first.bytes) == (2.25, 0, 0.161, 0.322, 71)
    assert second.status == 28


def test_a_stall_is_between_two_growths() -> None:
    assert longest_stall("0 0\n5 0\n6 10\n6.5 20\n7 20\n9 20\n9.5 30\n20 30\n") == 3.0, "not before the first byte, nor after the last"
    assert longest_stall("") == longest_stall("1 5\n2 6\n") == 0.0


def test_the_silence_at_last_is_after_the_last_growth() -> None:
    assert silent_at_last("0 0\n6 10\n6.5 20\n7 20\n9 20\n") == 2.5
    assert silent_at_last("") == silent_at_last("1 5\n2 5\n") == 0.0
