"""Build the files of a release: chart, list of images, plugin, krew manifest, CRDs and checksums.

    python scripts/release.py --registry ghcr.io/acme [--version 0.1.0] [--home https://github.com/acme/sos] [--out out/release]

The chart in the package differs from charts/sos in three places: its version, the registry of its images, and annotations for Artifact Hub.
`make release REGISTRY=...` sets up what this script needs.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent))  # not on the path with PYTHONSAFEPATH

import plugin

TOP = Path(__file__).resolve().parents[1]
CHART = TOP / "charts/sos"
TOOLS = Path.home() / ".cache/sos/bin"
REGISTRY = re.compile(r"[a-z0-9][a-z0-9.-]*(?::\d+)?(?:/[a-z0-9][a-z0-9._-]*)*")
VERSION = re.compile(r"\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?")  # semantic versions; a `+` would not be a tag of an image
HOME = re.compile(r"https://[^\s\"]+")
SUMS = "SHA256SUMS"
PLATFORMS = ("linux", "darwin")


class ReleaseError(Exception):
    """A release cannot be built; the text names the option or the program."""


# --- texts ---------------------------------------------------------------------------------------------------------------


def images(values: Mapping[str, dict[str, dict[str, str]]], registry: str, version: str) -> dict[str, str]:
    """Return the reference of each image, by the key of the chart's values."""
    found = {key: image for key, image in values["images"].items() if isinstance(image, dict)}
    return {key: f"{registry}/{image['repository']}:{version}" for key, image in found.items()}


def chart_yaml(text: str, version: str, references: Mapping[str, str], crds: list[dict[str, str]], home: str) -> str:
    """Return Chart.yaml of a release. `crds`: entries of `described`."""
    text, count = re.subn(r"^(version|appVersion): .*$", rf"\1: {version}", text, flags=re.MULTILINE)
    if count != 2:
        raise ReleaseError(f"{CHART}/Chart.yaml: version and appVersion are not one line each")
    chart: dict[str, Any] = yaml.safe_load(text)
    listed = {"images": [{"name": key, "image": image} for key, image in references.items()], "crds": crds}
    chart["annotations"] |= {f"artifacthub.io/{key}": yaml.safe_dump(value, sort_keys=False) for key, value in listed.items()}
    return yaml.safe_dump(chart | ({"home": home, "sources": [home]} if home else {}), sort_keys=False)


def described(crd: Mapping[str, Any]) -> dict[str, str]:
    """Return the entry of Artifact Hub for a CustomResourceDefinition."""
    spec = crd["spec"]
    (version,) = [each for each in spec["versions"] if each["storage"]]
    said = " ".join(version["schema"]["openAPIV3Schema"]["description"].split())
    kind, name = spec["names"]["kind"], crd["metadata"]["name"]
    return {"kind": kind, "version": version["name"], "name": name, "displayName": kind, "description": said.partition(". ")[0]}


def values_yaml(text: str, registry: str) -> str:
    """Return values.yaml of a release, with the registry of its images."""
    text, count = re.subn(r'^  registry: ""$', f"  registry: {registry}", text, flags=re.MULTILINE)
    if count != 1:
        raise ReleaseError(f"{CHART}/values.yaml: images.registry is not one empty line")
    return text


def krew_manifest(version: str, home: str, digest: str, archive: str) -> str:
    """Return the manifest by which `kubectl krew install --manifest` installs the plugin of a release."""
    platforms = "".join(
        f"""\
  - selector: {{matchLabels: {{os: {system}}}}}
    uri: {home}/releases/download/v{version}/{archive}
    sha256: {digest}
    files: [{{from: {plugin.NAME}, to: .}}, {{from: LICENSE, to: .}}]
    bin: {plugin.NAME}
"""
        for system in PLATFORMS
    )
    return f"""\
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata: {{name: sos}}
spec:
  version: v{version}
  homepage: {home}
  shortDescription: Show and diagnose accelerated TCP between sites
  description: |
    Shows SOS objects, topology and sessions, traces and diagnoses connections, drains agents, pairs clusters and uninstalls SOS.
  caveats: |
    Requires Python 3.11 or newer. Shell completion: docs/plugin.md.
  platforms:
{platforms}"""


def packed(content: bytes, licence: bytes) -> bytes:
    """Return the plugin and its licence as a tar.gz, the form that krew installs. The same content gives the same bytes."""
    out = io.BytesIO()
    with gzip.GzipFile("", "wb", fileobj=out, mtime=0) as compressed, tarfile.open(fileobj=compressed, mode="w") as archive:
        for name, data, mode in ((plugin.NAME, content, 0o755), ("LICENSE", licence, 0o644)):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), mode
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def sums(files: Mapping[str, bytes]) -> str:
    """Return the checksums of files, in the form that `sha256sum --check` reads."""
    return "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(files.items()))


# --- files ---------------------------------------------------------------------------------------------------------------


def run(command: Sequence[str | Path], **variables: str) -> None:
    """Run a program with these environment variables; its failure ends the release."""
    try:
        done = subprocess.run(
            [str(word) for word in command], env=os.environ | variables, capture_output=True, text=True, check=False, timeout=120
        )
    except FileNotFoundError:
        raise ReleaseError(f"{command[0]} is not installed") from None
    if done.returncode:
        raise ReleaseError(f"{' '.join(map(str, command))}: {(done.stderr or done.stdout).strip()}")


def helm() -> Path | str:
    """The helm of the test tools, or of PATH."""
    own = TOOLS / "helm"
    return own if own.exists() else "helm"


def package_chart(version: str, registry: str, home: str, out: Path) -> dict[str, str]:
    """Write the chart's package to `out`; return its images."""
    references = images(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")), registry, version)
    crds = [described(yaml.safe_load(path.read_text(encoding="utf-8"))) for path in sorted((TOP / "crds").glob("*.yaml"))]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "sos"
        shutil.copytree(CHART, copy)
        for name, text in (
            ("Chart.yaml", chart_yaml((copy / "Chart.yaml").read_text(encoding="utf-8"), version, references, crds, home)),
            ("values.yaml", values_yaml((copy / "values.yaml").read_text(encoding="utf-8"), registry)),
        ):
            (copy / name).write_text(text, encoding="utf-8")
        run([helm(), "package", copy, "--destination", out])
    return references


def build(version: str, registry: str, home: str, out: Path) -> None:
    """Write all files of a release to the folder `out`, which is emptied first."""
    if out.exists() and any(out.iterdir()) and not (out / SUMS).exists():
        raise ReleaseError(f"--out {out}: this folder has files, but no {SUMS} of an earlier release; name another folder")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    references = package_chart(version, registry, home, out)
    (out / "images.txt").write_text("".join(f"{image}\n" for image in sorted(references.values())), encoding="utf-8")
    content = plugin.build(version)
    archive = f"{plugin.NAME}-{version}.tar.gz"
    (out / plugin.NAME).write_bytes(content)
    (out / plugin.NAME).chmod(0o755)
    (out / archive).write_bytes(packed(content, (TOP / "LICENSE").read_bytes()))
    if home:
        digest = hashlib.sha256((out / archive).read_bytes()).hexdigest()
        (out / "krew-sos.yaml").write_text(krew_manifest(version, home, digest, archive), encoding="utf-8")
    run([TOP / "scripts/crds.sh", out / "sos.crds.yaml"], VERSION=version)
    (out / SUMS).write_text(sums({path.name: path.read_bytes() for path in out.iterdir()}), encoding="utf-8")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Build the files of a release.")
    parser.add_argument("--registry", required=True, help="registry of the images, and path in it: ghcr.io/acme")
    parser.add_argument("--version", default=plugin.chart_version(), help="version (default: the chart's, %(default)s)")
    parser.add_argument("--home", default="", help="address of the repository, for the krew manifest and the chart's metadata")
    parser.add_argument("--out", type=Path, default=Path("out/release"), help="folder for the files, emptied first (default: %(default)s)")
    options = parser.parse_args()
    for name, pattern, example in (
        ("registry", REGISTRY, "ghcr.io/acme"),
        ("version", VERSION, "0.1.0"),
        ("home", HOME, "https://github.com/acme/sos"),
    ):
        value = getattr(options, name)
        if (value or name == "registry") and not pattern.fullmatch(value):
            parser.error(f"--{name} {value}: write it like {example}")
    try:
        build(options.version, options.registry, options.home.rstrip("/"), options.out)
    except (ReleaseError, plugin.ImportRefusedError) as error:
        sys.exit(f"release: {error}")
    for path in sorted(options.out.iterdir()):
        print(f"release: {path} ({path.stat().st_size / 1024:.0f} KiB)")


if __name__ == "__main__":
    main()
