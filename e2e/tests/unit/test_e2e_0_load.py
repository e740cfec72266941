"""Load script and the evaluation of its records; needs no cluster."""

import hashlib
import os
import subprocess
from pathlib import Path

from sos_e2e.observation.load import SIP, longest_stall, parse_probes, silent_at_last, sips


def test_a_steady_download_reports_its_bytes_and_end(tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "load"
    source.write_bytes(os.urandom(3 * SIP + 1))
    folder.mkdir()
    subprocess.run(["sh", "-c", sips(source.as_uri())], cwd=folder, check=True, timeout=60)
    assert (folder / "long.exit").read_text() == "0\n"
    assert (folder / "long.sum").read_text().split()[0] == hashlib.sha256(source.read_bytes()).hexdigest()


def test_a_failed_download_records_curls_status(tmp_path: Path) -> None:
    (tmp_path / "got").touch()
    subprocess.run(["sh", "-c", sips((tmp_path / "nowhere").as_uri())], cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "long.exit").read_text() == "37\n"


def test_probes_are_sorted_by_start_time() -> None:
    first, second = parse_probes("12.5 28 0.0 15.001 0\n2.25 0 0.161 0.322 71\n")
    assert (first.at, first.status, first.connect_s, first.total_s, first.bytes) == (2.25, 0, 0.161, 0.322, 71)
    assert second.status == 28


def test_a_stall_is_the_time_between_two_size_increases() -> None:
    assert longest_stall("0 0\n5 0\n6 10\n6.5 20\n7 20\n9 20\n9.5 30\n20 30\n") == 3.0, "no stall before the first or after the last byte"
    assert longest_stall("") == longest_stall("1 5\n2 6\n") == 0.0


def test_final_silence_starts_at_the_last_size_increase() -> None:
    assert silent_at_last("0 0\n6 10\n6.5 20\n7 20\n9 20\n") == 2.5
    assert silent_at_last("") == silent_at_last("1 5\n2 5\n") == 0.0
