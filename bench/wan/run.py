"""`make bench-wan`: SOS compared with other methods to fill a long fat network, over emulated links (README.md)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH omits this folder

from sos_harness.loop import main
from sos_wan.bench import BENCH

if __name__ == "__main__":
    sys.exit(main(BENCH))
