"""Run `./run.sh train addition-int8 --ray ADDRESS`, with a Python file as the job in place of verl.

python ray_job.py ADDRESS JOB OUT RESTARTS [WORDS ..]
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

from launch.plan.make import new_run
from launch.ray_jobs.cluster import connect
from launch.ray_jobs.plan import make
from launch.ray_jobs.run import run
from launch.recipes import Paths, load


def main(address: str, file: str, out: str, restarts: str, *words: str) -> int:
    recipe = load("addition-int8", ["trainer.nnodes=3"])
    plan = make(recipe, Paths(out, out, out), new_run(), shell=os.environ, restarts=int(restarts))
    added = plan.job.entrypoint[-1:] if int(restarts) else []
    entrypoint = ["job.py", f"{out}/STAY", *words, *added]
    job = replace(plan.job, entrypoint=entrypoint, files={"job.py": Path(file).read_text()})
    wanted = replace(plan.wanted, model=None, needs=[])
    return run(replace(plan, job=job, wanted=wanted), connect(address), int(restarts))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
