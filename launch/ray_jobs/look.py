"""What the nodes of a Ray cluster have, as a job of ours sees it: `python -m launch.ray_jobs.look`.

It runs from a folder with these files alone (nodes.py), under the cluster's Python, which may lack all else of ours.
What is asked is in asked.json; the answer is a line of JSON, behind MARK.
"""

import json
import os
import platform
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from launch import existing
from launch.system.software import Import, installed_packages, missing, sources

MARK = "ASCEND_QUANT_NODES "
SECONDS = 60


def seen(asked: dict[str, Any]) -> dict[str, Any]:
    """Return what the node has that this task runs on."""
    packages, package = installed_packages(), find_spec("ascend_quant")
    imports = [Import(**one) for one in asked["imports"]]
    return {
        "Python": platform.python_version(),
        "packages": {name: packages[name].version for name in asked["packages"] if name in packages},
        "sources": sources([Path(folder) for folder in package.submodule_search_locations]) if package else None,
        "missing": [imports.index(one) for one in missing(imports)],
        "absent": [path for path in asked["paths"] if not os.path.exists(path)],
        "writable": os.access(existing(Path(asked["out"])), os.W_OK),
    }


def main() -> None:
    """Ask every node that lives, and print what they answer."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

    ray.init(log_to_driver=False)
    asked = json.loads(Path("asked.json").read_text())
    nodes = [node for node in ray.nodes() if node["Alive"]]
    task = ray.remote(num_cpus=0)(seen)
    answers = [task.options(scheduling_strategy=On(node["NodeID"], soft=False)).remote(asked) for node in nodes]
    told = [
        {"address": node["NodeManagerAddress"], "resources": node["Resources"], **answer}
        for node, answer in zip(nodes, ray.get(answers, timeout=SECONDS), strict=True)
    ]
    print(f"\n{MARK}{json.dumps(told)}", flush=True)


if __name__ == "__main__":
    main()
