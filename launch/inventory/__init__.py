"""Inventories: on which machines a run takes place; from configs/clusters/NAME.yaml, or this machine alone."""

from launch.inventory.fields import Host, Inventory, Ports, Ssh
from launch.inventory.files import load, names, this_machine

__all__ = ["Host", "Inventory", "Ports", "Ssh", "load", "names", "this_machine"]
