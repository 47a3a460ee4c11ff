#!/bin/bash
# HEALTHCHECK of the images, a few milliseconds and no Python: what ends a run from below while its processes still live.
# Prints one line and ends with 1: a file system that fills up, devices that have gone.
set -euo pipefail

readonly FULL=97 # per cent; Ray stops working with a disk at 95

filled() { # filled FOLDER: its use in per cent
  df --output=pcent "$1" | tail -n 1 | tr -dc 0-9
}

devices_gone() {
  case ${ASCEND_QUANT_STACK:-} in
  ascend*) ! compgen -G '/dev/davinci[0-9]*' >/dev/null ;;
  cuda*) ! compgen -G '/dev/nvidia[0-9]*' >/dev/null && ! [[ -e /dev/dxg ]] ;;
  *) false ;;
  esac
}

for folder in /dev/shm /tmp; do
  if (($(filled "$folder") >= FULL)); then
    echo "$folder is $(filled "$folder") % full: remove what nobody uses, or give it more room"
    exit 1
  fi
done
if devices_gone; then
  echo "no devices in /dev: they were there when the container was made; look at the driver on the host"
  exit 1
fi
echo "well"
