"""Test TLS of the process over loopback sockets: certificates, refusals, rotation, stalled handshakes."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from controller_lab import TOKEN, document
from controller_process import HELLO, WAIT_S, Honest, Process, assert_closed, connected, handshake, wait
from controller_tls import CA, OTHER_CA, client_context, connect, controller_folder, switch_context, write_folder
from sos_compile.certificates import certify_controller, certify_switches
from sos_controller.files.config import document_hash

MAX_TLS_HANDSHAKES = 256  # of the controller; an import of its module would patch the sockets of this process
EDGE1, EDGE2, CORE1 = 0x1000000000001, 0x2000000000002, 0x3000000000003


def required(generation: int = 1, tls: str = "Required", plain: str = "core1") -> dict[str, Any]:
    """Return a configuration with TLS; the site `plain` has a switch without TLS."""
    made = document(generation)
    made["controller"]["tls"] = tls
    for site in made["sites"]:
        if site["name"] == plain:
            site["datapaths"][0]["tls"] = "Disabled"
    return {**made, "hash": document_hash(made)}


@contextlib.contextmanager
def running(folder: Path, made: dict[str, Any]) -> Iterator[Process]:
    process = Process(folder, made, "--openflow-tls", str(controller_folder(folder / "tls")))
    try:
        wait("the controller", process.up)
        yield process
    finally:
        process.process.kill()
        process.process.wait(WAIT_S)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with running(tmp_path_factory.mktemp("controller"), required()) as made:
        yield made


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with running(tmp_path_factory.mktemp("controller"), required(plain="")) as made:
        yield made


def gets_nothing(sock: socket.socket, sent: bytes = HELLO) -> bool:
    """Return whether the controller closes a connection without an OpenFlow message; an alert of TLS begins with 21."""
    got = b""
    sock.settimeout(WAIT_S)
    try:
        sock.sendall(sent)
        while chunk := sock.recv(65536):
            got += chunk
    except (ssl.SSLError, ConnectionResetError, BrokenPipeError):
        pass
    finally:
        sock.close()
    return not got or got[0] == 21


def test_switch_with_a_certificate_of_its_site_connects(process: Process, tmp_path: Path) -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = switch_context(tmp_path / version.name, "west")
        context.maximum_version = version
        with Honest(process, EDGE1, connect(process, context)) as switch:
            wait("the datapath", lambda: connected(process, "edge1") == [True])
            switch.serves()
        wait("its departure", lambda: connected(process, "edge1") == [False])


def test_old_versions_of_tls_are_refused(process: Process, tmp_path: Path) -> None:
    context = switch_context(tmp_path / "tls", "west")
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        connect(process, context)


def test_switch_without_a_certificate_gets_nothing(strict: Process, tmp_path: Path) -> None:
    before = strict.metric("tls_refusals_total")
    assert gets_nothing(strict.switch())
    context = client_context(tmp_path / "none", None, CA)
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # with 1.3 a client learns of the refusal only after its handshake
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        connect(strict, context)
    wait("the refusals", lambda: strict.metric("tls_refusals_total") == before + 2)
    messages = [record["message"] for record in strict.log() if "refused" in record["message"]]
    assert any("the switch does not use TLS, which is required" in m for m in messages)
    assert any("peer did not return a certificate" in m for m in messages)


@pytest.mark.parametrize("case", ["another CA", "a controller's certificate", "an expired certificate"])
def test_switch_with_an_invalid_certificate_gets_nothing(strict: Process, tmp_path: Path, case: str) -> None:
    now = datetime.now(UTC)
    certified = {
        "another CA": lambda: certify_switches(OTHER_CA, "west", now),
        "a controller's certificate": lambda: certify_controller(CA, "west", now),
        "an expired certificate": lambda: certify_switches(CA, "west", now.replace(year=now.year - 1)),
    }[case]()
    context, before = client_context(tmp_path / "tls", certified, CA), count(strict, "certificate refused: ")
    with contextlib.suppress(ssl.SSLError, ConnectionResetError):
        assert gets_nothing(connect(strict, context))
    wait("the message", lambda: count(strict, "certificate refused: ") == before + 1)


def test_certificate_of_another_site_does_not_give_a_datapath(process: Process, tmp_path: Path) -> None:
    sock = handshake(process, EDGE1, sock=connect(process, switch_context(tmp_path / "tls", "east")))
    assert_closed(sock)
    assert connected(process, "edge1") == [False]
    assert any("its certificate is for site 'east'" in record["message"] for record in process.log())


def test_only_a_declared_switch_connects_without_tls(process: Process) -> None:
    with Honest(process, CORE1) as switch:
        wait("the datapath", lambda: connected(process, "core1") == [True])
        switch.serves()
        assert_closed(handshake(process, EDGE1))
        assert connected(process, "edge1") == [False]


def test_silent_switch_counts_as_plain_and_gets_a_hello(process: Process) -> None:
    with process.switch() as sock:
        sock.settimeout(WAIT_S)
        assert sock.recv(65536)[1] == 0


def test_requirement_ends_plain_connections(tmp_path: Path) -> None:
    context = switch_context(tmp_path / "east", "east")
    with (
        running(tmp_path, required(tls="Disabled", plain="")) as process,
        Honest(process, EDGE1) as plain,
        Honest(process, EDGE2, connect(process, context)) as secured,
    ):
        wait("both", lambda: connected(process, "edge1") == connected(process, "edge2") == [True])
        assert process.ask("/v1/config", "PUT", json.dumps(required(2, plain="")).encode(), TOKEN)[0] == 200
        wait("the end of the plain connection", lambda: plain.closed)
        secured.serves()


def test_stalled_handshakes_end_and_do_not_exclude_switches(strict: Process, tmp_path: Path) -> None:
    stalled = [strict.switch() for _ in range(MAX_TLS_HANDSHAKES + 50)]
    began = time.monotonic()
    try:
        for sock in stalled:
            sock.sendall(b"\x16\x03\x01\x02\x00\x01")  # the head of a record of 512 bytes
        with Honest(strict, EDGE1, connect(strict, switch_context(tmp_path / "tls", "west"))) as switch:
            wait("the datapath", lambda: connected(strict, "edge1") == [True])
            switch.serves()
            assert time.monotonic() - began < 4, "before the stalled handshakes time out"
        for sock in stalled:
            sock.settimeout(WAIT_S)
            assert_closed(sock)
        assert time.monotonic() - began < WAIT_S
    finally:
        for sock in stalled:
            sock.close()


def test_rotation_of_certificate_and_ca_keeps_connections(tmp_path: Path) -> None:
    tls = tmp_path / "tls"
    with running(tmp_path, required()) as process:
        old = switch_context(tmp_path / "old", "west")
        with Honest(process, EDGE1, connect(process, old)) as first:
            controller_folder(tls, CA, OTHER_CA)
            wait("the reload", lambda: count(process, "TLS certificate") == 2)
            controller_folder(tls, OTHER_CA, CA)
            wait("the reload", lambda: count(process, "TLS certificate") == 3)
            both = switch_context(tmp_path / "both", "east", CA, trusted=OTHER_CA)
            with Honest(process, EDGE2, connect(process, both)) as second:
                controller_folder(tls, OTHER_CA)
                wait("the reload", lambda: count(process, "TLS certificate") == 4)
                with contextlib.suppress(ssl.SSLError, ConnectionResetError):
                    assert gets_nothing(connect(process, switch_context(tmp_path / "late", "core2", CA, trusted=OTHER_CA)))
                for switch in (first, second):
                    switch.serves()
                with connect(process, switch_context(tmp_path / "new", "core2", OTHER_CA)) as sock:
                    handshake(process, 0x4000000000004, sock=sock)


def test_unusable_files_keep_the_last_certificate_and_are_named(tmp_path: Path) -> None:
    with running(tmp_path, required()) as process:
        broken = certify_controller(CA, "default", datetime.now(UTC))
        write_folder(tmp_path / "tls", broken._replace(key=certify_controller(CA, "x", datetime.now(UTC)).key), [CA])
        wait("the message", lambda: count(process, "keeping the last good TLS files"))
        (message,) = [r["message"] for r in process.log() if "keeping the last good" in r["message"]]
        assert message.endswith("tls/tls.key: does not match tls.crt")
        with Honest(process, EDGE1, connect(process, switch_context(tmp_path / "switch", "west"))) as switch:
            switch.serves()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tls.crt", "", "tls.crt: is empty"),
        ("tls.crt", "no certificate", "tls.crt: holds no usable certificate in PEM"),
        ("ca.crt", "no certificate", "ca.crt: holds no usable CA certificate in PEM"),
        ("tls.key", "no key", "tls.key: holds no usable private key in PEM without a password"),
        ("tls.key", None, "tls.key'"),
    ],
)
def test_controller_does_not_start_with_an_unusable_file_and_names_it(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    folder = controller_folder(tmp_path / "tls")
    (folder / name).unlink()
    if text is not None:
        (folder / name).write_text(text)
    (tmp_path / "keys").mkdir()
    (tmp_path / "token").write_text("token")
    command = (sys.executable, "-m", "sos_controller", "--keys", tmp_path / "keys", "--token-file", tmp_path / "token")
    ended = subprocess.run((*command, "--openflow-tls", folder), capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert ended.returncode == 1 and message in ended.stderr, ended.stderr
    assert "BEGIN" not in ended.stderr


def test_requirement_without_certificate_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    process = Process(tmp_path, required())
    assert process.process.wait(WAIT_S) == 1
    assert "controller.tls: Required needs a certificate: start the controller with --openflow-tls" in (tmp_path / "log").read_text()


def count(process: Process, text: str) -> int:
    return sum(text in record["message"] for record in process.log())
