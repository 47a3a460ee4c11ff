"""Files for a cluster's own tools: `recipe show NAME --as slurm | kuberay | docker-compose`.

task.py      what each of them starts: the command, its variables, its size
slurm.py     an sbatch script: Ray on the job's nodes (ray.sh), then the command
kuberay.py   a RayJob, for GPUs, or for NPUs with Volcano
compose.py   a compose file for one host, from docker/compose.yaml
"""
