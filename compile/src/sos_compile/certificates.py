"""X.509 certificates of OpenFlow channels: a deployment's CA, and certificates of controllers and of the switches of a site.

Only the operator, or the testbed in its place, holds the CA's key. A switch does not check the name in a controller's certificate, and all
switches trust the CA; so each certificate has an extended key usage (RFC 5280, 4.2.1.12), and a switch's certificate is not
accepted as a controller's. Needs the extra `certificates` of this package.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CERTIFICATE_FILE, KEY_FILE, CA_FILE = "tls.crt", "tls.key", "ca.crt"
"""Files of a TLS folder, named as in a Secret of type kubernetes.io/tls."""
CLOCK_SKEW = timedelta(hours=1)
"""Certificates are valid this long before they are issued: clocks of nodes may be behind."""
CA_LIFETIME = timedelta(days=3650)
LIFETIME = timedelta(days=90)
RENEWAL = timedelta(days=30)
"""Time before its end at which a certificate is replaced: a month for an operator that is down."""
CA_RENEWAL = timedelta(days=365)


class Certified(NamedTuple):
    """A certificate and its private key, in PEM."""

    certificate: str
    key: str

    def __repr__(self) -> str:
        """Without the key, so that no log or traceback shows it."""
        return "Certified(...)"


def new_ca(now: datetime) -> Certified:
    """Return a new certification authority, which certifies controllers and switches and no other authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    # Names of a deployment's authorities differ, so that error messages tell them apart.
    name = _name(f"SOS OpenFlow CA {x509.random_serial_number() % 2**32:08x}")
    builder = _builder(name, name, key.public_key(), (now, now + CA_LIFETIME))
    usage = _key_usage(key_cert_sign=True, digital_signature=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).add_extension(usage, critical=True)
    return _sealed(builder, key, key)


def certify_controller(ca: Certified, name: str, now: datetime) -> Certified:
    """Return a certificate for a controller."""
    return _certify(ca, name, ExtendedKeyUsageOID.SERVER_AUTH, now)


def certify_switches(ca: Certified, site: str, now: datetime) -> Certified:
    """Return a certificate for the switches of a site, whose common name is the site's name."""
    return _certify(ca, site, ExtendedKeyUsageOID.CLIENT_AUTH, now)


def is_current(certified: Certified, ca: Certified, name: str, now: datetime) -> bool:
    """Return whether a certificate was issued by this CA to this name, has its key, and is not due for replacement."""
    try:
        certificate, key = x509.load_pem_x509_certificate(certified.certificate.encode()), _load_key(certified.key)
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(ca.certificate.encode()))
    except (ValueError, TypeError, InvalidSignature):
        return False
    lasts = certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - RENEWAL
    return lasts and certificate.subject == _name(name) and certificate.public_key() == key.public_key()


def ca_is_due(ca: Certified, now: datetime) -> bool:
    """Return whether a CA is due for replacement. Raise ValueError if it cannot be read."""
    return now >= x509.load_pem_x509_certificate(ca.certificate.encode()).not_valid_after_utc - CA_RENEWAL


def is_ca(ca: Certified) -> bool:
    """Return whether certificate and key can be read and belong together."""
    try:
        return x509.load_pem_x509_certificate(ca.certificate.encode()).public_key() == _load_key(ca.key).public_key()
    except (ValueError, TypeError):
        return False


def tls_files(certified: Certified, authorities: list[Certified]) -> dict[str, str]:
    """Return a TLS folder: file name -> content. `authorities`: CAs to trust, several while a CA is being replaced."""
    trusted = "".join(ca.certificate for ca in authorities)
    return {CERTIFICATE_FILE: certified.certificate, KEY_FILE: certified.key, CA_FILE: trusted}


def _certify(ca: Certified, name: str, usage: x509.ObjectIdentifier, now: datetime) -> Certified:
    issuer, ca_key = x509.load_pem_x509_certificate(ca.certificate.encode()), _load_key(ca.key)
    key = ec.generate_private_key(ec.SECP256R1())
    end = min(now + LIFETIME, issuer.not_valid_after_utc)
    builder = _builder(_name(name), issuer.subject, key.public_key(), (now, end))
    builder = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(key_cert_sign=False, digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
    )
    return _sealed(builder, key, ca_key)


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, valid: tuple[datetime, datetime]
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public_key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(_utc(valid[0] - CLOCK_SKEW)).not_valid_after(_utc(valid[1]))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)


def _sealed(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, ca_key: ec.EllipticCurvePrivateKey) -> Certified:
    certificate = builder.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Certified(certificate.decode(), private.decode())


def _load_key(pem: str) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem.encode(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not a key of an elliptic curve")
    return key


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(*, key_cert_sign: bool, digital_signature: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC)
