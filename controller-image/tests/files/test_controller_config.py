"""Test the configuration document, key files, state folder and --check."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from controller_lab import document
from sos_controller.core.types import AgentId
from sos_controller.core.wire.keys import BEACON, KeyRing
from sos_controller.files.check import check
from sos_controller.files.config import ConfigError, ConflictError, document_hash, follows, parse
from sos_controller.files.identity import new_identity
from sos_controller.files.key_files import read_keys, read_tokens

ROOT = Path(__file__).resolve().parents[3]
VECTORS = ROOT / "spec" / "vectors" / "config"
BAD = sorted((VECTORS / "bad" / "controller").glob("*.json"))
GOOD = sorted((VECTORS / "controller").glob("*.json"))


def encode(made: dict) -> bytes:
    return json.dumps(made).encode()


def changed(path: str, value: object) -> dict:
    """Return the lab's document with one changed field and the correct hash."""
    made = copy.deepcopy(document())
    *way, last = [int(p) if p.isdigit() else p for p in path.split(".")]
    at: object = made
    for step in way:
        at = at[step]  # type: ignore[index]
    at[last] = value  # type: ignore[index]
    return {**made, "hash": document_hash(made)}


def test_vectors_exist() -> None:
    assert len(GOOD) >= 2 and len(BAD) >= 6


@pytest.mark.parametrize("path", GOOD, ids=lambda p: p.stem)
def test_good_vectors_parse(path: Path) -> None:
    config = parse(path.read_bytes())
    assert config.sites and (config.services or config.balances)


@pytest.mark.parametrize("path", BAD, ids=lambda p: p.stem)
def test_bad_vectors_name_the_field(path: Path) -> None:
    vector = json.loads(path.read_text())
    with pytest.raises(ConfigError) as caught:
        parse(encode(vector["document"]))
    assert caught.value.path and vector["path"].startswith(caught.value.path)


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("services.0.ports.0.first", 0, "services[0].ports[0].first"),
        ("services.0.ports.0.last", 22, "services[0].ports[0]"),
        ("services.0.ports", [], "services[0].ports"),
        ("services.0.percent", 101, "services[0].percent"),
        ("services.0.from.site", "nowhere", "services[0].from.site"),
        ("services.0.to.site", "west", "services[0].to.site"),
        ("services.0.from.prefixes.0", "10.0.0.1/25", "services[0].from.prefixes[0]"),
        ("sites.0.prefixes.0", "2001:db8::/32", "sites[0].prefixes[0]"),
        ("sites.1.name", "west", "sites[1].name"),
        ("sites.1.id", 1, "sites[1].id"),
        ("sites.1.datapaths.0.dpid", "0001000000000001", "sites[1].datapaths[0].dpid"),
        ("sites.0.datapaths.0.forwarding", "Magic", "sites[0].datapaths[0].forwarding"),
        ("sites.0.agents.0.id", "abc", "sites[0].agents[0].id"),
        ("controller.id", 0, "controller.id"),
        ("discovery.mac", "02:53", "discovery.mac"),
        ("discovery.mac", "+2:53: 0:00:00:01", "discovery.mac"),
        ("sites.0.gateway", "10.0.0.1/24", "sites[0].gateway"),
        ("sites.0.subnet", "10.0.0.0/255.255.255.0", "sites[0].subnet"),
        ("sites.0.prefixes.0", "10.0.0.1", "sites[0].prefixes[0]"),
        ("sites.0.mtu", 9217, "sites[0].mtu"),
        ("sites.0.datapaths.0.dpid", "0001000000000001\n", "sites[0].datapaths[0].dpid"),
        ("services.0.priority", -1, "services[0].priority"),
        ("services.0.transport.streams", 257, "services[0].transport.streams"),
        ("generation", 0, "generation"),
        (
            "links",
            [{"a": {"site": "x", "uplink": "u"}, "b": {"site": "west", "uplink": "u"}, "cost": 1, "capacityMbps": 0}],
            "links[0].a.site",
        ),
        ("extra", 1, ""),
    ],
)
def test_errors_name_the_invalid_field(field: str, value: object, path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(encode(changed(field, value)))
    assert caught.value.path == path


NO_DOCUMENTS = ("", "[]", "{", '{"a": 1, "a": 2}', '{"a": 1.5}', '{"a": NaN}', "[" * 100_000, '{"generation": "\\ud800"}', '{"\\ud800": 1}')


@pytest.mark.parametrize("text", NO_DOCUMENTS)
def test_malformed_documents_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse(text.encode())


@pytest.mark.parametrize("where", ["services.0.id", "generation", "hash"])
def test_lone_surrogates_are_refused_in_every_field(where: str) -> None:
    made = copy.deepcopy(document())
    if where == "services.0.id":
        made["services"][0]["id"] = "\ud800"
    else:
        made[where] = "\ud800"
    with pytest.raises(ConfigError) as caught:
        parse(encode(made))
    assert str(caught.value).encode()


def test_duplicate_name_among_many_is_found_in_bounded_time() -> None:
    text = "{" + ",".join(f'"{n}":0' for n in range(300_000)) + ',"299999":1}'
    began = time.process_time()
    with pytest.raises(ConfigError, match="'299999' is given twice"):
        parse(text.encode())
    assert time.process_time() - began < 60, "time must not grow with the square of the number of names"


def test_the_hash_covers_everything_but_generation() -> None:
    assert document_hash(document(1)) == document_hash(document(2))
    with pytest.raises(ConfigError) as caught:
        parse(encode({**document(), "hash": "sha256:" + "0" * 64}))
    assert caught.value.path == "hash"


def test_generations_only_rise() -> None:
    first, second = parse(encode(document(3))), parse(encode(document(4)))
    assert follows(first, None) and follows(second, first) and not follows(first, first)
    for later, before in (
        (first, second),
        (parse(encode(document(3, services=False))), first),
        (parse(encode(changed("controller.id", 2))), first),
    ):
        with pytest.raises(ConflictError):
            follows(later, before)


# -- files


def test_keys_are_read_by_name(tmp_path: Path) -> None:
    (tmp_path / "site-1-1").write_text("00" * 32 + "\n")
    (tmp_path / "site-1-2").write_text("11" * 32)
    (tmp_path / "site-20-1").write_text("AB" * 32)
    (tmp_path / "..data").write_text("other")
    assert read_keys(tmp_path) == ({1: {1: bytes(32), 2: b"\x11" * 32}, 20: {1: b"\xab" * 32}}, None)
    (tmp_path / "sending").write_text("1\n")
    assert read_keys(tmp_path).sending == 1
    (tmp_path / "sending").write_text("new")
    with pytest.raises(ValueError, match="sending: not a key id"):
        read_keys(tmp_path)


def test_announced_keys_are_not_used_for_signing() -> None:
    sites = {1: {1: bytes(32), 2: bytes(32)}, 2: {3: bytes(32)}}
    assert KeyRing(sites).sending(1) == 2
    agreed = KeyRing(sites, 1)
    assert (agreed.sending(1), agreed.sending(2), agreed.sending(9)) == (1, 3, None)
    assert agreed.derive(BEACON, 1, 2, AgentId(bytes(16))) is not None, "messages signed with the announced key are accepted"


@pytest.mark.parametrize(
    ("name", "text"), [("site-1-1", "00"), ("site-1-0", "00" * 32), ("site-70000-1", "00" * 32), ("site-1-1", "zz" * 32)]
)
def test_bad_key_files_are_named(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=name):
        read_keys(tmp_path)


def test_tokens_are_read_from_two_files(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(" secret \n")
    assert read_tokens(tmp_path / "token") == (b"secret",)
    (tmp_path / "token-also").write_text("new\n")
    assert read_tokens(tmp_path / "token") == (b"secret", b"new")
    for name in ("token", "token-also"):
        good = (tmp_path / name).read_text()
        (tmp_path / name).write_text("\n")
        with pytest.raises(ValueError, match=f"{name}: the token is empty"):
            read_tokens(tmp_path / "token")
        (tmp_path / name).write_text(good)
    (tmp_path / "token").unlink()
    with pytest.raises(FileNotFoundError):
        read_tokens(tmp_path / "token")


def test_each_run_has_a_higher_epoch_and_boot_id(tmp_path: Path) -> None:
    one, other = new_identity(tmp_path / "state"), new_identity(tmp_path / "state")
    assert other.epoch == one.epoch + 1 and other.boot_id > one.boot_id and other.probe_key != one.probe_key
    (tmp_path / "state" / "epoch").write_text(f"7 {2**62}\n")
    assert new_identity(tmp_path / "state").boot_id == 2**62 + 1, "the boot id increases even if the clock was set back"
    assert new_identity(None).epoch > 0
    assert new_identity(tmp_path / "empty").epoch > 10**9, "an empty state folder does not mean epoch 1"


# -- --check and the command line


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sos_controller", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "PYTHONWARNINGS": "ignore"})


def test_check_reports_ok_or_names_file_and_field(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_bytes(encode(document(12)))
    bad.write_bytes(encode(changed("services.0.ports.0.first", 0)))
    done = run("--check", str(good))
    assert (done.returncode, done.stdout) == (0, f"{good}: ok (generation 12, 4 sites, 1 services)\n")
    done = run("--check", str(good), str(bad), str(tmp_path / "missing.json"))
    lines = done.stdout.splitlines()
    assert done.returncode == 1 and lines[1].startswith(f"{bad}: services[0].ports[0].first: ") and "cannot be read" in lines[2]


def test_check_accepts_custom_resources() -> None:
    example = ROOT / "examples" / "01-two-sites"
    lines, well = check([example])
    assert well and any(line.endswith("sites, 1 services)") for line in lines), lines


def test_check_names_object_and_field_of_custom_resources(tmp_path: Path) -> None:
    for file in (ROOT / "examples" / "01-two-sites").glob("*.yaml"):
        text = file.read_text()
        (tmp_path / file.name).write_text(text.replace("10.0.0.128/25", "10.0.0.128/33") if "SosSite" in text else text)
    lines, well = check([tmp_path])
    assert not well and any("SosSite east" in line and "prefixes" in line and str(tmp_path) in line for line in lines), lines


def test_bad_usage_and_bad_files_have_their_exit_codes(tmp_path: Path) -> None:
    assert run("--no-such-option").returncode == 2
    assert run("--openflow-listen", "nonsense").returncode == 2
    assert run().returncode == 2
    assert run("--version").stdout.startswith("sos-controller ")
    (tmp_path / "keys").mkdir()
    (tmp_path / "token").write_text("t")
    (tmp_path / "config.json").write_bytes(encode(changed("sites.0.id", 0)))
    files = ["--keys", str(tmp_path / "keys"), "--token-file", str(tmp_path / "token"), "--log-level", "error"]
    done = run(*files, "--config", str(tmp_path / "config.json"))
    assert done.returncode == 1 and done.stderr == f"{tmp_path}/config.json: sites[0].id: expected `int` >= 1\n"
    assert run("--keys", str(tmp_path / "none"), "--token-file", str(tmp_path / "token")).returncode == 1


def test_imports_obey_their_contracts() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    contracts = ["--contract", "controller-core", "--contract", "check"]
    command = [str(lint), "--config", str(ROOT / ".importlinter"), *contracts, "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout
    assert "The controller's core is pure KEPT" in done.stdout
