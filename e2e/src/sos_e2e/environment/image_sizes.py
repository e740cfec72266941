"""Upper bounds of image sizes. Every node pulls some of these images, so a change that makes an image exceed its bound must fail."""

from collections.abc import Mapping

MB = 1_000_000
COPIES = 2
"""Copies of an image on a node: compressed layers and unpacked layers."""
# Upper bound of the size that each image adds to its base image: the added size when the bound was set, plus 15 %. The base is not counted:
# its publisher controls its size, and nodes share it between images. docs/install.md has the same figures.
MOST_ADDED_MB = {"operator": 220, "controller": 135, "agent": 150, "node": 225, "ovs": 190}


def added_mb(image_bytes: int, base_bytes: int) -> float:
    """Size that an image adds to its base image, in MB."""
    return (image_bytes - base_bytes) / MB


def outgrown(added: Mapping[str, float]) -> list[str]:
    """One sentence for every image above its bound."""
    return [
        f"image {image} adds {mb:.0f} MB to its base, but only {MOST_ADDED_MB[image]} MB are allowed: find what has grown, "
        "or raise the bound in sos_e2e/environment/image_sizes.py and docs/install.md and give the reason"
        for image, mb in added.items()
        if mb > MOST_ADDED_MB[image]
    ]


def no_room(copies: Mapping[str, tuple[int, int]], free_bytes: int) -> str:
    """Error message if the disk space does not suffice for the images; "" if it does. `copies`: size and number of nodes of each image.

    The nodes of a kind cluster share the engine's disk, so the images of all nodes must fit into the free space that one node reports.
    """
    need = sum(size * nodes * COPIES for size, nodes in copies.values())
    if need <= free_bytes:
        return ""
    largest = max(copies, key=lambda image: copies[image][0] * copies[image][1])
    return (
        f"the nodes have {free_bytes / MB:,.0f} MB left on the engine's disk, but loading the images takes {need / MB:,.0f} MB "
        f"(most of it for {largest}): free disk space; `docker system df` shows what uses it"
    )
