"""Labels of images, and the unprivileged user of images whose pods run without root."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest
import yaml
from operator_kube import ROOT
from sos_e2e.environment import base_images, image_sizes

CHART = yaml.safe_load((ROOT / "charts" / "sos" / "Chart.yaml").read_text())
VALUES = yaml.safe_load((ROOT / "charts" / "sos" / "values.yaml").read_text())
FILES = {"operator": "Dockerfile", "controller": "controller-image/Dockerfile"} | dict.fromkeys(
    ("agent", "node", "ovs"), "agent-image/Dockerfile"
)
BUILDING = ("build", "ovs-buffers")
"""Stages that are not published as images."""
PREFIX = "org.opencontainers.image."


@dataclass(frozen=True)
class Stage:
    """Instructions of a Dockerfile for one image."""

    base: str
    labels: dict[str, str]
    user: str
    copied: tuple[str, ...]
    arguments: tuple[str, ...] = ()


def stages(file: str) -> dict[str, Stage]:
    """Stages by name; the last stage is called `last` if it has no name."""
    lines = [line for line in (ROOT / file).read_text().splitlines() if not line.lstrip().startswith("#")]
    found: dict[str, Stage] = {}
    for instruction in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, _, rest = instruction.strip().partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            current = name or "last"
            found[current] = Stage(base, {}, "", ())
        elif word == "LABEL":
            pairs = (part.split('="') for part in rest.split('" '))
            found[current].labels.update((key.strip(), value.strip('" ')) for key, value in pairs)
        elif word == "USER":
            found[current] = replace(found[current], user=rest)
        elif word == "COPY":
            found[current] = replace(found[current], copied=(*found[current].copied, rest))
        elif word == "ARG" and found:
            found[current] = replace(found[current], arguments=(*found[current].arguments, rest.partition("=")[0]))
    return found


@pytest.mark.parametrize("image", sorted(FILES))
def test_every_image_of_the_chart_is_built_and_labelled(image: str) -> None:
    stage = stages(FILES[image])[image if image in ("agent", "node", "ovs") else "last"]
    assert stage.labels[f"{PREFIX}title"] == VALUES["images"][image]["repository"]
    assert stage.labels[f"{PREFIX}version"] == CHART["appVersion"]
    assert stage.labels[f"{PREFIX}licenses"] == CHART["annotations"]["artifacthub.io/license"]
    assert stage.labels[f"{PREFIX}base.name"] == stage.base == "$BASE"
    assert len(stage.labels[f"{PREFIX}description"]) > 20


@pytest.mark.parametrize("image", sorted(FILES))
def test_build_arguments_set_source_and_revision_labels(image: str) -> None:
    name = image if image in ("agent", "node", "ovs") else "last"
    stage = stages(FILES[image])[name]
    assert {what: stage.labels[f"{PREFIX}{what}"] for what in ("source", "revision")} == {"source": "$SOURCE", "revision": "$REVISION"}
    assert stage.arguments == ("BASE", "SOURCE", "REVISION"), "declared in the stage: arguments above FROM are undefined in it"


def test_containers_without_need_for_root_run_unprivileged() -> None:
    users = {image: stages(FILES[image])[image if image in ("agent", "node", "ovs") else "last"].user for image in FILES}
    assert {image for image, user in users.items() if user != "65532:65532"} == {"agent", "node", "ovs"}


def test_images_contain_no_build_only_files() -> None:
    for file in set(FILES.values()):
        for name, stage in stages(file).items():
            if name in BUILDING:
                continue
            assert not [copied for copied in stage.copied if copied.split()[0] in (".", "crates", "pyproject.toml")], (file, name)
            assert stage.base == "$BASE", (file, name)


@pytest.mark.parametrize("file", sorted(set(FILES.values())))
def test_bases_are_arguments_with_a_full_version(file: str) -> None:
    """A tag such as `rust:1-bookworm` names a different compiler after a month."""
    named = base_images.declared((ROOT / file).read_text())
    assert {stage.base.removeprefix("$") for stage in stages(file).values()} == set(named)
    assert "slim" in named["BASE"]
    for base in named.values():
        assert base.partition(":")[0] in base_images.MOVING and base not in {
            f"docker.io/library/{tag}" for tag in base_images.MOVING.values()
        }
        assert re.fullmatch(r"docker\.io/library/(debian:[a-z]+-\d{8}-slim|(python|rust):\d+\.\d+\.\d+-[a-z-]+)", base)


def test_an_image_above_its_bound_is_reported() -> None:
    assert set(image_sizes.MOST_ADDED_MB) == set(FILES)
    fits = {image: float(bound) for image, bound in image_sizes.MOST_ADDED_MB.items()}
    assert image_sizes.outgrown(fits) == []
    (said,) = image_sizes.outgrown({**fits, "node": image_sizes.added_mb(400 * image_sizes.MB, 81 * image_sizes.MB)})
    assert said.startswith("image node adds 319 MB to its base, but only 225 MB are allowed")


def test_lack_of_disk_space_is_reported_before_loading() -> None:
    copies = {"agent": (300 * image_sizes.MB, 2), "node": (350 * image_sizes.MB, 5)}
    need = 2 * (600 + 1750) * image_sizes.MB
    assert image_sizes.no_room(copies, need) == ""
    said = image_sizes.no_room(copies, need - 1)
    assert "4,700 MB left" in said and "takes 4,700 MB (most of it for node)" in said


def test_the_install_page_has_the_checked_bounds() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    assert dict(re.findall(r"^\| `sos-(\w+)` \|.*\| (\d+) MB \|$", page, re.MULTILINE)) == {
        image: str(bound) for image, bound in image_sizes.MOST_ADDED_MB.items()
    }
