"""`kubectl sos enroll`: the archive for a machine, and its objects on a real API server."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import sos_compile
from operator_fixtures import populated
from operator_kube import Kube
from operator_plugin import plugin_environment, sos
from sos_compile.documents.enrollment import build_enrollment
from sos_kubectl.base.source import SourceError
from sos_kubectl.enrollment import archive, machine
from sos_kubectl.enrollment.machine import Machine

NAMESPACE = "sos-system"
DECLARED = Machine("gw", ("10.9.0.0/16",), ("192.0.2.9", "198.51.100.9"), "lan0", blocked=True)
NEW = ("--prefix", "10.9.0.0/16", "--address", "192.0.2.9", "--interface", "lan0", "--endpoint", "192.0.2.1:14790")


def test_the_sospeer_of_a_machine_is_admitted_as_it_is() -> None:
    made = machine.peer(DECLARED, 9)
    assert sos_compile.admit(made)[1] == []
    assert made["spec"]["machine"]["inbound"] == "Blocked"


def test_a_free_site_id_is_the_highest_that_no_site_has() -> None:
    announced = {"status": {"sites": [{"siteID": 65_534}]}}
    used: list[dict[str, Any]] = [
        {"spec": {"siteID": 65_535}},
        announced,
        {"spec": {"machine": {"siteID": 65_533}}},
        {"status": {"siteID": 1}},
    ]
    assert machine.free_site_id(used) == 65_532
    with pytest.raises(SourceError, match="all 65535 site ids are in use"):
        machine.free_site_id({"spec": {"siteID": number}} for number in range(1, 65_536))


def test_a_renewal_removes_only_keys_that_the_machine_no_longer_uses() -> None:
    keys = {1: b"1", 2: b"2"}
    assert machine.renewed(keys, b"3", used=2) == {2: b"2", 3: b"3"}
    assert machine.renewed(keys, b"3", used=1) == {1: b"1", 2: b"2", 3: b"3"}, "the archive with key 2 was not copied"
    assert machine.renewed(keys, b"3", used=None) == {1: b"1", 2: b"2", 3: b"3"}
    with pytest.raises(SourceError, match="copy the archive"):
        machine.renewed(dict.fromkeys(range(1, 9), b"k"), b"9", used=1)
    with pytest.raises(SourceError, match="used up"):
        machine.renewed({65_535: b"1"}, b"2", used=None)


def test_the_archive_is_laid_out_as_a_file_system(tmp_path: Path) -> None:
    binary = tmp_path / "agent"
    binary.write_bytes(b"ELF")
    enrollment = build_enrollment("gw", 9, bytes(16), {1: bytes(32)}, [("192.0.2.1", 14790)] * 100)
    with tarfile.open(fileobj=io.BytesIO(archive.build(enrollment, binary, 1))) as found:
        modes = {member.name: member.mode for member in found}
        assert modes == {"etc/sos": 0o700, archive.ENROLLMENT: 0o600, archive.UNIT: 0o644, archive.BINARY: 0o755}
        read = found.extractfile(archive.ENROLLMENT)
        assert read is not None
        assert len(json.load(read)["agents"]) == 64, "an enrollment has at most 64 agents"
        assert {member.uid for member in found} == {0}


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = archive.unit()
    assert "/etc/sos/enrollment.json --state /var/lib/sos" in text, "paths of the archive"
    unit = tmp_path / "sos-agent.service"
    unit.write_text(text.replace("ExecStart=/usr/bin/sos-agent", "ExecStart=/bin/true"))  # the agent is not installed here
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def enroll(kube: Kube, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = ["kubectl-sos", "enroll", *arguments, "-n", NAMESPACE]
    return subprocess.run(command, env=plugin_environment(kube), capture_output=True, timeout=240, check=False)


def document(done: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as found:
        read = found.extractfile(archive.ENROLLMENT)
        assert read is not None
        content: dict[str, Any] = json.load(read)
    return content


def test_a_machine_is_enrolled_renewed_and_removed(installed: Kube, tmp_path: Path) -> None:
    with populated(installed) as cluster:
        first = document(enroll(cluster, "gw", *NEW))
        spec = cluster.get("sospeer", "gw")["spec"]
        assert (spec["machine"]["siteID"], spec["machine"]["inbound"], spec["prefixes"]) == (first["siteID"], "Open", ["10.9.0.0/16"])
        assert first["agents"] == ["192.0.2.1:14790"] and list(first["keys"]) == ["1"]
        again = enroll(cluster, "gw", *NEW)
        assert again.returncode == 2 and b"there is a SosPeer gw already: set --again" in again.stderr
        assert document(enroll(cluster, "gw", "--again", "--endpoint", "192.0.2.1:14790")) == first
        assert document(enroll(cluster, "gw2", *NEW[2:], "--prefix", "10.8.0.0/16"))["siteID"] == first["siteID"] - 1

        second = document(enroll(cluster, "gw", "--renew", "--endpoint", "192.0.2.1:14790"))
        assert (second["pairing"], second["siteID"], list(second["keys"])) == (first["pairing"], first["siteID"], ["1", "2"])
        cluster.patch_status("sospeer", "gw", None, {"keyID": 2})
        (tmp_path / "gw.tar").touch(mode=0o644)
        third = enroll(cluster, "gw", "--renew", "--endpoint", "192.0.2.1:14790", "--file", str(tmp_path / "gw.tar"))
        assert third.returncode == 0 and third.stdout == b"" and (tmp_path / "gw.tar").stat().st_mode & 0o777 == 0o600
        assert set(cluster.get("secret", "sos-peer-gw", "-n", NAMESPACE)["data"]) == {"pairing", "key-2", "key-3"}
        assert second["keys"]["2"].encode() not in third.stderr
        cluster.kubectl("delete", "sospeer", "gw")
        assert list(document(enroll(cluster, "gw", *NEW))["keys"]) == ["1"]
        assert set(cluster.get("secret", "sos-peer-gw", "-n", NAMESPACE)["data"]) == {"pairing", "key-1"}, "no key of the former machine"
        for name in ("gw", "gw2"):
            assert sos(cluster, "peer", "remove", name, "-n", NAMESPACE).returncode == 0
        unknown = enroll(cluster, "gw9", "--renew", "--endpoint", "192.0.2.1:14790")
        assert unknown.returncode == 2 and b"no machine gw9 is enrolled" in unknown.stderr
        early = enroll(cluster, "late", *NEW[:-2])
        assert early.returncode == 2 and b"no agent" in early.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("GW", *NEW), "'GW' is not a valid name"),
        (("gw.example", *NEW), "'gw.example' is not a valid name"),
        (("gw", *NEW[2:]), "--prefix is missing"),
        (("gw", *NEW, "--address", "gw.example"), "--address gw.example"),
        (("gw", *NEW, "--endpoint", "192.0.2.1"), "--endpoint 192.0.2.1: write an address and a port"),
        (("gw", *NEW, "--binary", "/nowhere"), "--binary /nowhere: there is no such file"),
    ],
)
def test_wrong_arguments_are_named(installed: Kube, arguments: tuple[str, ...], says: str) -> None:
    done = enroll(installed, *arguments)
    assert done.returncode == 2 and says in done.stderr.decode(), done.stderr
