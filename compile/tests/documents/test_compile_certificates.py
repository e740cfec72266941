"""Test certificates of OpenFlow channels."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from sos_compile import certificates
from sos_compile.certificates import Certified, certify_controller, certify_switches, is_current, new_ca, tls_files

NOW = datetime(2026, 11, 1, tzinfo=UTC)
CA, OTHER = new_ca(NOW), new_ca(NOW)


def parsed(certified: Certified) -> x509.Certificate:
    return x509.load_pem_x509_certificate(certified.certificate.encode())


def test_certificate_is_current_until_a_month_before_its_end() -> None:
    made = certify_switches(CA, "west", NOW)
    assert is_current(made, CA, "west", NOW) and is_current(made, CA, "west", NOW + timedelta(days=59))
    assert not is_current(made, CA, "west", NOW + timedelta(days=60))


@pytest.mark.parametrize(
    ("certified", "ca", "name"),
    [
        (certify_switches(CA, "west", NOW), OTHER, "west"),
        (certify_switches(CA, "west", NOW), CA, "east"),
        (certify_switches(CA, "west", NOW)._replace(key=CA.key), CA, "west"),
        (certify_switches(CA, "west", NOW)._replace(key="no key"), CA, "west"),
        (Certified("no certificate", CA.key), CA, "west"),
        (Certified("", ""), CA, "west"),
    ],
    ids=["another CA", "another name", "another key", "no key", "no certificate", "empty"],
)
def test_unusable_certificate_is_not_current(certified: Certified, ca: Certified, name: str) -> None:
    assert not is_current(certified, ca, name, NOW)


def test_certificate_ends_no_later_than_its_ca() -> None:
    late = NOW + certificates.CA_LIFETIME - timedelta(days=10)
    assert parsed(certify_controller(CA, "default", late)).not_valid_after_utc == parsed(CA).not_valid_after_utc
    assert certificates.ca_is_due(CA, late) and not certificates.ca_is_due(CA, NOW)


def test_switch_is_no_controller_and_no_authority() -> None:
    store = Store([parsed(CA)])
    at = PolicyBuilder().store(store).time(NOW)
    verified = at.build_client_verifier().verify
    with pytest.raises(VerificationError):
        verified(parsed(certify_controller(CA, "default", NOW)), [])
    forged = certify_switches(certify_switches(CA, "west", NOW), "east", NOW)
    with pytest.raises(VerificationError):
        verified(parsed(forged), [parsed(certify_switches(CA, "west", NOW))])


def test_folder_holds_every_trusted_ca() -> None:
    files = tls_files(certify_switches(CA, "west", NOW), [CA, OTHER])
    assert sorted(files) == ["ca.crt", "tls.crt", "tls.key"]
    assert files["ca.crt"] == CA.certificate + OTHER.certificate


def test_value_shows_no_key() -> None:
    assert "PRIVATE" not in f"{CA!r} {CA} {[CA]}"
