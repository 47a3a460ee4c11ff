"""Files for the tools of a cluster: `recipe show NAME --as slurm | kuberay | docker-compose`.

task.py      the task that each of them starts: its command, variables and folders
slurm.py     an sbatch script, which starts Ray on the job's nodes (ray.sh), then the command
kuberay.py   a RayJob for GPUs, or for NPUs with Volcano
compose.py   a compose file for one host, from docker/compose.yaml
"""
