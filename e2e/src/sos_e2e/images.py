"""The images of the project, built from its Dockerfiles, and one for the pods at both ends of a transfer."""

import os
import subprocess

from sos_e2e.run import CommandError, run, say
from sos_e2e.settings import ROOT, Settings

HOST_DOCKERFILE = """\
FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends curl nginx-light iproute2 iputils-ping procps \\
 && rm -rf /var/lib/apt/lists/*
COPY nginx.conf /etc/nginx/nginx.conf
CMD ["sleep", "infinity"]
"""

# Two ports, the same file behind both: 80 belongs to the service of the example, 8080 does not.
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
  server { listen 80; listen 8080; root /srv; }
}
"""


def names(settings: Settings) -> dict[str, str]:
    """Image references by component."""
    return {part: f"localhost/sos-{part}:{settings.tag}" for part in ("operator", "controller", "agent", "node", "ovs", "e2e-host")}


def _build(tag: str, *args: str, context: str | os.PathLike[str] = ROOT) -> None:
    # the classic builder is enough for every Dockerfile here and exists on every engine
    env = os.environ | {"DOCKER_BUILDKIT": "0"}
    command = ["docker", "build", "--network", "host", "-t", tag, *args, str(context)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode:
        raise CommandError(f"{' '.join(command)}\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}")


def build(settings: Settings) -> dict[str, str]:
    """Build every image; layers that have not changed come from the engine's cache."""
    ref = names(settings)
    say("building image operator")
    _build(ref["operator"], "-f", str(ROOT / "Dockerfile"))
    say("building image controller")
    _build(ref["controller"], "-f", str(ROOT / "controller-image" / "Dockerfile"))
    for target in ("agent", "node", "ovs"):
        say(f"building image {target}")
        _build(ref[target], "-f", str(ROOT / "agent-image" / "Dockerfile"), "--target", target, context=ROOT / "agent-image")
    say("building image e2e-host (curl and nginx as Debian ships them)")
    folder = settings.out / "host-image"
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(HOST_DOCKERFILE)
    (folder / "nginx.conf").write_text(NGINX_CONF)
    _build(ref["e2e-host"], context=folder)
    return ref


# None: every node; the images not named here run wherever a worker has room
PLACES = {"node": None, "ovs": None, "agent": ("west", "east"), "e2e-host": ("west", "east")}


def load(settings: Settings, ref: dict[str, str], nodes: dict[str, str]) -> None:
    """Copy images from the engine into the nodes that will run them."""
    workers = [node for site, node in nodes.items() if site != "core2"]
    groups: dict[tuple[str, ...], list[str]] = {}
    for part, image in ref.items():
        sites = PLACES.get(part, ())
        where = tuple(nodes.values()) if sites is None else tuple(nodes[site] for site in sites) or tuple(workers)
        groups.setdefault(where, []).append(image)
    if settings.load_cni_images:
        groups.setdefault(tuple(nodes.values()), []).extend([settings.multus_image, settings.ovs_cni_image])
    for where, some in groups.items():
        say(f"loading {len(some)} images into {len(where)} nodes")
        run("kind", "load", "docker-image", "--name", settings.cluster, "--nodes", ",".join(where), *some, timeout=600)
