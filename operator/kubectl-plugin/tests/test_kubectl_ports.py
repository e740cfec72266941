"""Ports named in remedies are the ports in use."""

from __future__ import annotations

import re

import pytest
import sos_compile
from operator_kube import ROOT
from sos_kubectl.diagnose.findings import REMEDIES

TROUBLESHOOTING = (ROOT / "docs" / "troubleshooting.md").read_text()


@pytest.mark.parametrize("text", [REMEDIES["LinkSilent"], TROUBLESHOOTING.partition("### LinkSilent\n")[2].partition("\n### ")[0]])
def test_remedies_name_the_udp_port_of_tunnels(text: str) -> None:
    assert re.findall(r"UDP (\d+)", text) == [str(sos_compile.Settings().ports.tunnels)]
