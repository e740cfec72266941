"""Test the fuzzing seeds: complete, truncated and with one wrong byte. Run the fuzzer for a short time; `make fuzz` runs it longer."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FUZZ = Path(__file__).resolve().parents[2] / "fuzz"
sys.path.append(str(FUZZ))
import documents  # noqa: E402
import live  # noqa: E402
import seeds  # noqa: E402
import targets  # noqa: E402

EXAMPLES = seeds.seeds()
MAX_CHANGED = 400
"""Maximum number of changed positions in one example. In long documents, the positions are evenly spaced."""
SHORT = {"document": 500, "engine": 1_000, "stream": 1_000}
"""Number of fuzzing cases for the slow targets. All other targets run 5,000 cases."""


@functools.cache
def functions() -> dict[str, Callable[[bytes], None]]:
    found = {**targets.parsers(), **live.stateful(), "document": documents.document}
    assert found.keys() == EXAMPLES.keys()
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_complete_truncated_and_changed_seeds_are_parsed_or_refused(name: str) -> None:
    function = functions()[name]
    for example in EXAMPLES[name]:
        function(example)
        for at in range(0, len(example), 1 + len(example) // MAX_CHANGED):
            function(example[:at])
            function(example[:at] + bytes([example[at] ^ 0x81]) + example[at + 1 :])


def test_seeds_are_written_without_their_folder_on_the_path(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(FUZZ / "seeds.py"), str(tmp_path)], env={**os.environ, "PYTHONSAFEPATH": "1"}, check=True)
    written = {folder.name: len(list(folder.iterdir())) for folder in tmp_path.iterdir()}
    assert written == {name: len(examples) for name, examples in EXAMPLES.items()}


@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="there is no fuzzer for this machine")
@pytest.mark.parametrize("name", EXAMPLES)
def test_short_fuzzer_run_finds_no_error(name: str, tmp_path: Path) -> None:
    start, grown = tmp_path / "seeds", tmp_path / "grown"
    for folder in (start, grown):
        folder.mkdir()
    for number, example in enumerate(EXAMPLES[name]):
        (start / str(number)).write_bytes(example)
    arguments = [f"-runs={SHORT.get(name, 5_000)}", "-seed=1", "-max_len=2048", "-timeout=60", "-rss_limit_mb=2048"]
    command = [sys.executable, str(FUZZ / "run.py"), name, *arguments, f"-artifact_prefix={tmp_path}/", str(grown), str(start)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4_000:]
    assert "DONE" in done.stderr and any(grown.iterdir()), "the fuzzer found new coverage"
