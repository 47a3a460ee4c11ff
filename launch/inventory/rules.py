"""What in an inventory does not go together, and what to write instead."""

from collections.abc import Iterator

from launch.inventory.fields import Inventory

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def problems(inventory: Inventory) -> Iterator[str]:
    """Everything that is wrong with an inventory whose fields are valid one by one."""
    addresses = [host.address for host in inventory.hosts]
    for address in dict.fromkeys(addresses):
        if addresses.count(address) > 1:
            yield f"hosts: {address} is there twice: each host has an address of its own"
        if address in LOOPBACK and len(addresses) > 1:
            yield f"hosts: {address} is each machine's own loopback: write the address that other hosts reach"
    if inventory.mounts and inventory.image is None:
        yield "mounts: are for a container: name an image, or leave them out"
