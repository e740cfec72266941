"""Commands with a timeout, and waits with a deadline."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class CommandError(AssertionError):
    """A command failed; the message has its whole output."""


def say(text: str) -> None:
    """Print progress."""
    print(f"e2e: {text}", file=sys.stderr, flush=True)


def run(*command: str | Path, timeout: float = 120, stdin: str | None = None, check: bool = True) -> str:
    """Run a command and return its standard output; raise CommandError with its complete output on failure."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as late:
        raise CommandError(f"{' '.join(words)}: not done after {timeout} s\n{late.stdout!r}\n{late.stderr!r}") from late
    if check and done.returncode:
        raise CommandError(f"{' '.join(words)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def wait_for(what: str, probe: Callable[[], T | None], timeout: float, interval: float = 1.0) -> T:
    """Call `probe` until it returns a true value; the error contains its last result or message."""
    deadline, last = time.monotonic() + timeout, "nothing yet"
    while time.monotonic() < deadline:
        try:
            found = probe()
            if found:
                return found
            last = repr(found)
        except (AssertionError, LookupError, ValueError) as no:
            last = str(no)
        time.sleep(interval)
    raise AssertionError(f"{what}: not within {timeout:.0f} s; last: {last}")
