"""Doctor's checks on the nodes of a Ray cluster, as a Ray job: `python -m launch.ray_jobs.look REQUESTS`.

REQUESTS is a JSON object with what is wanted of each node, by its id. The job prints the reports as a line of JSON
after MARK.
"""

import sys

from pydantic import TypeAdapter

from launch.doctor.checking import HostReport
from launch.doctor.hosts import EXAMINE_SECONDS, answer_here
from launch.plan import Wanted

MARK = "ASCEND_QUANT_REPORTS "
REQUESTS, REPORTS = TypeAdapter(dict[str, Wanted]), TypeAdapter(list[HostReport])


def main(wanted: dict[str, Wanted]) -> None:
    """Run the checks on all nodes concurrently, and print their reports."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

    ray.init(log_to_driver=False)
    task = ray.remote(num_cpus=0)(answer_here)
    answers = [task.options(scheduling_strategy=On(node, soft=False)).remote(one) for node, one in wanted.items()]
    print(f"\n{MARK}{REPORTS.dump_json(ray.get(answers, timeout=EXAMINE_SECONDS)).decode()}", flush=True)


if __name__ == "__main__":
    main(REQUESTS.validate_json(sys.argv[1]))
