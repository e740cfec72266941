"""`make test-kernel`: scenarios of the testbed on a Debian kernel and its Open vSwitch, in a virtual machine (README.md)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH omits this folder

from sos_kernel.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
