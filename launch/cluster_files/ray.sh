# shellcheck shell=bash disable=SC2154,SC2034 # slurm.py writes variables_of_node(), which uses $nic, and command
set -euo pipefail
RAY_AUTH_TOKEN=$(od -An -tx1 -N32 /dev/urandom | tr -d ' \n')
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export HEAD=${nodes[0]} PORT=$((20000 + SLURM_JOB_ID % 10000))

address_of() { # prints the address of a node, from Slurm, as the node's name may not resolve
  getent ahostsv4 "$(scontrol show node "$1" | grep -oP 'NodeAddr=\K\S+')" | awk 'NR == 1 { print $1 }'
}

start_ray() { # runs on each node
  address=$(address_of "$SLURMD_NODENAME")
  nic=$(ip -o addr show to "$address" | awk 'NR == 1 { print $2 }')
  variables_of_node
  common=(--block --node-ip-address="$address" --disable-usage-stats)
  if [[ $SLURMD_NODENAME == "$HEAD" ]]; then
    exec ray start --head --port="$PORT" --include-dashboard=false --temp-dir="/tmp/ray-$SLURM_JOB_ID" "${common[@]}"
  fi
  until ray health-check --address "$HEAD_ADDRESS:$PORT" 2> /dev/null; do sleep 1; done
  # Ray gives up its start after a fixed time, which may be too short where all nodes read one file system at once
  until ray start --address="$HEAD_ADDRESS:$PORT" "${common[@]}"; do ((SECONDS < 300)) || exit 1; done
}

one_task=(--overlap --nodes=1 --ntasks=1)
on() { # on NODE COMMAND ..: runs a command on a node; exec makes $! the pid of srun
  exec srun "${one_task[@]}" --nodelist="$1" "${@:2}"
}

run() { # run COMMAND ..: runs a command on the head; returns its exit code, or 1 as soon as Ray has ended on a node
  on "$HEAD" "$@" &
  driver=$!
  local code=0
  wait -n "$driver" "$head" "${workers[@]}" || code=$?
  if kill -0 "$driver" 2> /dev/null; then
    echo "Ray has ended on a node, with exit code $code" >&2
    return 1
  fi
  return "$code"
}

wait_for_slurm() { # if a node is dead: Ray notices it in seconds, but Slurm, which then requeues the job, in minutes
  local node seconds
  for node in "${nodes[@]}"; do
    if ! timeout 30 srun "${one_task[@]}" --nodelist="$node" true; then
      seconds=$(scontrol show config | awk '$1 == "SlurmdTimeout" { print $3 + 60 }')
      echo "$node does not answer: waiting up to $seconds s for Slurm to requeue the job" >&2
      sleep "$seconds" &
      wait $!
    fi
  done
}

end() { # ends the command, then Ray on the workers, then on the head
  local code=$?
  trap - EXIT TERM INT
  for step in ${driver:-} "${workers[@]}" "$head"; do
    kill "$step" 2> /dev/null || true
    wait "$step" || true
  done
  exit "$code"
}

HEAD_ADDRESS=$(address_of "$HEAD")
export HEAD_ADDRESS RAY_ADDRESS=$HEAD_ADDRESS:$PORT
functions=$(declare -f address_of variables_of_node start_ray)
workers=()
on "$HEAD" env -u RAY_ADDRESS bash -c "$functions; start_ray" &
head=$!
trap end EXIT
trap 'exit 143' TERM INT
for node in "${nodes[@]:1}"; do
  on "$node" env -u RAY_ADDRESS bash -c "$functions; start_ray" &
  workers+=($!)
done

wait_for_nodes() { # runs on the head
  until ray health-check --address "$RAY_ADDRESS" 2> /dev/null; do sleep 1; done
  python -c "
import ray, time
ray.init()
while sum(node['Alive'] for node in ray.nodes()) < $SLURM_JOB_NUM_NODES: time.sleep(1)"
}
code=0
run timeout 300 bash -c "$(declare -f wait_for_nodes); wait_for_nodes" && run "${command[@]}" || code=$?
((code == 0)) || { wait_for_slurm; exit "$code"; }
