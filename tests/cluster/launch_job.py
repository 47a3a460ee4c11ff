"""What `./run.sh train addition-int8` does, with a Python file as the job in place of verl.

python launch_job.py INVENTORY JOB OUT [RESTARTS] [--on-this-node]
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

from launch.cluster import inventory as inventories
from launch.cluster.run import run
from launch.plan import Job, Plan
from launch.plan.make import locals_of, make, new_run
from launch.recipes import Paths, load


def plan_of(inventory: inventories.Inventory, job: Path, out: str) -> Plan:
    """The plan of the recipe, on all hosts of the inventory, with another job, which needs no model and no data."""
    recipe = load("addition-int8", [f"trainer.nnodes={len(inventory.hosts)}"])
    plan = make(recipe, inventory, Paths(out, out, out), new_run(), locals_of(inventory), shell=os.environ)
    nodes = [replace(node, model=None, needs=[]) for node in plan.nodes]
    nodes[0] = replace(nodes[0], job=replace(nodes[0].job, entrypoint=[job.name], files={job.name: job.read_text()}))
    assert isinstance(nodes[0].job, Job)
    return replace(plan, nodes=nodes)


def main(inventory_file: str, job: str, out: str, *more: str) -> int:
    inventory = inventories.load(inventory_file)
    plan = plan_of(inventory, Path(job), out)
    restarts = next((int(word) for word in more if word.isdecimal()), 0)
    return run(plan, restarts, plan.local.index(True) if "--on-this-node" in more else None)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
