"""Images of the project, built from its Dockerfiles, and the image of the client and server pods of a transfer."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from sos_e2e.environment import base_images, image_sizes
from sos_e2e.run import CommandError, run, say
from sos_e2e.settings import ROOT, Settings

# Component -> its Dockerfile, and the stage unless it is the last.
SOURCES = {
    "operator": (ROOT / "Dockerfile", None),
    "controller": (ROOT / "controller-image" / "Dockerfile", None),
    "agent": (ROOT / "agent-image" / "Dockerfile", "agent"),
    "node": (ROOT / "agent-image" / "Dockerfile", "node"),
    "ovs": (ROOT / "agent-image" / "Dockerfile", "ovs"),
}

HOST_DOCKERFILE = """\
ARG BASE
FROM $BASE
RUN apt-get update && apt-get install -y --no-install-recommends curl nginx-light iproute2 iputils-ping procps \\
 && rm -rf /var/lib/apt/lists/*
COPY nginx.conf /etc/nginx/nginx.conf
CMD ["sleep", "infinity"]
"""

# All ports serve the same file: 80 belongs to the service of example 01, 6000 to the second service of example 05, 8080 to no service.
NGINX_CONF = """\
worker_processes 1;
daemon off;
error_log /dev/stderr warn;
pid /tmp/nginx.pid;
events { worker_connections 512; }
http {
  log_format seen '$remote_addr:$remote_port $server_addr:$server_port $request_method $status $bytes_sent';
  access_log /tmp/access.log seen;
  sendfile on;
  server { listen 80; listen 6000; listen 8080; root /srv; }
}
"""


def names(settings: Settings) -> dict[str, str]:
    """Image references by component."""
    return {part: f"localhost/sos-{part}:{settings.tag}" for part in ("operator", "controller", "agent", "node", "ovs", "e2e-host")}


def _build(tag: str, *args: str, context: str | os.PathLike[str] = ROOT) -> None:
    # the classic builder suffices for every Dockerfile here and exists on every engine
    env = os.environ | {"DOCKER_BUILDKIT": "0"}
    command = ["docker", "build", "--network", "host", "-t", tag, *args, str(context)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode:
        raise CommandError(f"{' '.join(command)}\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}")


def bases() -> dict[Path, dict[str, str]]:
    """Base images by build argument, of each Dockerfile."""
    return {dockerfile: base_images.declared(dockerfile.read_text()) for dockerfile, _ in SOURCES.values()}


def build_one(tag: str, dockerfile: Path, target: str | None, on: Mapping[str, str], context: Path) -> None:
    """Build one image on these base images."""
    arguments = [word for name, base in on.items() for word in ("--build-arg", f"{name}={base}")]
    _build(tag, "-f", str(dockerfile), *(("--target", target) if target else ()), *arguments, context=context)


def _check_sizes(ref: dict[str, str], on: dict[Path, dict[str, str]]) -> None:
    """Print all image sizes; raise CommandError if an image exceeds its bound."""
    added = {}
    for part, (dockerfile, _) in SOURCES.items():
        base = on[dockerfile]["BASE"]
        image_bytes, base_bytes = base_images.size_of(ref[part]), base_images.size_of(base)
        if image_bytes is None or base_bytes is None:
            raise CommandError(f"the engine does not know the size of {ref[part]} and of {base}")
        added[part] = image_sizes.added_mb(image_bytes, base_bytes)
    say("images add to their bases, in MB: " + ", ".join(f"{part} {mb:.0f}" for part, mb in added.items()))
    if too_large := image_sizes.outgrown(added):
        raise CommandError("\n".join(too_large))


def build(settings: Settings) -> dict[str, str]:
    """Build every image; unchanged layers come from the engine's cache. Raises CommandError if an image exceeds its bound.

    The engine has all base images (`base_images.named`). There are no build arguments, so that the README's lines find these layers.
    """
    ref = names(settings)
    on = bases()
    for part, (dockerfile, target) in SOURCES.items():
        say(f"building image {part}")
        # the images agent, node and ovs are built from their own folder; operator and controller also need the compiler's folder
        build_one(ref[part], dockerfile, target, {}, dockerfile.parent if target else ROOT)
    _check_sizes(ref, on)
    say("building image e2e-host (curl and nginx as Debian ships them)")
    folder = settings.out / "host-image"
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(HOST_DOCKERFILE)
    (folder / "nginx.conf").write_text(NGINX_CONF)
    _build(ref["e2e-host"], "--build-arg", f"BASE={on[SOURCES['ovs'][0]]['BASE']}", context=folder)
    return ref


# Places of the nodes into which an image is loaded; None: every node. An image that is not listed is loaded into all workers.
WITH_HOSTS = ("west", "east", "west2", "east2", "south")
PLACES = {"node": None, "ovs": None, "agent": WITH_HOSTS, "e2e-host": WITH_HOSTS}


def load(settings: Settings, ref: dict[str, str], nodes: dict[str, str], *, cni: bool = True) -> None:
    """Copy images from the engine into the nodes that run them; also the images of Multus and ovs-cni, unless nodes pull them."""
    workers = [node for place, node in nodes.items() if place != "core2"]
    groups: dict[tuple[str, ...], list[str]] = {}
    for part, image in ref.items():
        places = PLACES.get(part, ())
        some = tuple(nodes[place] for place in places or () if place in nodes)
        where = tuple(nodes.values()) if places is None else some or tuple(workers)
        groups.setdefault(where, []).append(image)
    if cni and settings.load_cni_images:
        groups.setdefault(tuple(nodes.values()), []).extend([settings.multus_image, settings.ovs_cni_image])
    _check_room(groups)
    for where, these in groups.items():
        say(f"loading {len(these)} images into {len(where)} nodes")
        run("kind", "load", "docker-image", "--name", settings.cluster, "--nodes", ",".join(where), *these, timeout=600)


def _check_room(groups: Mapping[tuple[str, ...], list[str]]) -> None:
    """Raise CommandError if the nodes lack disk space for the images; kind would stop halfway with "no space left on device"."""
    copies = {image: (base_images.size_of(image) or 0, len(where)) for where, some in groups.items() for image in some}
    a_node = next(iter(groups))[0]
    free = run("docker", "exec", a_node, "df", "--block-size=1", "--output=avail", "/var/lib/containerd")
    if wrong := image_sizes.no_room(copies, int(free.split()[-1])):
        raise CommandError(wrong)
