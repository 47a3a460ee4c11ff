"""`./run.sh doctor`: a look at the hosts before a run, with a fix for each finding. It changes nothing.

checks/ has a file a subject, which gathers facts on a host and judges them; examination.py does so with all of them;
hosts.py asks all hosts of an inventory and compares them.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from launch.doctor.checking import Finding, HostReport, Report

if TYPE_CHECKING:
    from rich.console import Console

    from launch.inventory.fields import Inventory
    from launch.recipes.fields import Recipe
    from launch.recipes.settings import Paths

__all__ = ["Finding", "HostReport", "Report", "examine", "show"]


def examine(
    inventory: "Inventory | None" = None,
    recipe: "Recipe | None" = None,
    paths: "Paths | None" = None,
    tell: Callable[[str], None] = lambda line: None,
    kl: float | None = None,
) -> Report:
    """Look at every host of the inventory, or at this machine alone where there is none.

    Args:
        recipe, paths: what would be run, for the checks of memory, devices and files.
        kl: what was measured between the policies of rollout and trainer, nats a token.
        tell: hears a line about what is being done; it takes seconds, over ssh up to minutes.
    """
    if inventory is not None:
        from launch.doctor.hosts import examine_hosts

        return examine_hosts(inventory, recipe, paths, tell, kl=kl)
    from launch.doctor.examination import examine_here
    from launch.doctor.requirements import wanted_here

    tell("examining this machine")
    findings, traits = examine_here(wanted_here(recipe, paths, kl))
    return Report([HostReport("this machine", findings, traits)])


def show(report: Report, console: "Console") -> None:
    """Print the report for people."""
    from launch.doctor.table import show as print_table

    print_table(report, console)
