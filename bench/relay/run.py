"""`make bench-relay`: what relaying a byte costs, beside other relays. README.md says how."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "wan")]  # PYTHONSAFEPATH leaves both out

from sos_relays.bench import BENCH
from sos_wan.loop import main

if __name__ == "__main__":
    sys.exit(main(BENCH))
