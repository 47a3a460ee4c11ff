#!/bin/sh
# apt.sh PACKAGE ..: install packages of the base's distribution, from one snapshot of it, and leave no trace of apt.
# A Debian base names its snapshot in comments of its sources file: with its digest the snapshot is pinned too. On Ubuntu
# apt itself finds snapshots, and APT_SNAPSHOT (20260102T030405Z) says which. Sources of others (CUDA's) are left out.
set -eu

fail() {
  echo "apt.sh: $*" >&2
  exit 1
}

snapshots_of_debian() { # the base's sources, with the snapshot of each in place of the moving archive
  awk '
    /^# *[a-z]+:\/\// { snapshot = $2; next }
    /^URIs:/ { if (!snapshot) exit 1; $0 = "URIs: " snapshot; snapshot = "" }
    { print }
  ' /etc/apt/sources.list.d/debian.sources >"$folder/parts/snapshot.sources" ||
    fail "the base names no snapshot in /etc/apt/sources.list.d/debian.sources: take an official Debian image"
}

snapshots_of_ubuntu() { # the same; from 24.04 on the sources are in another form
  : "${APT_SNAPSHOT:?apt.sh: on Ubuntu it is needed, as docker/docker-bake.hcl has it}"
  if [ -f /etc/apt/sources.list.d/ubuntu.sources ]; then
    sed "s/^URIs:/Snapshot: $APT_SNAPSHOT\n&/" /etc/apt/sources.list.d/ubuntu.sources >"$folder/parts/snapshot.sources"
  else
    sed -n "s/^deb /deb [snapshot=$APT_SNAPSHOT] /p" /etc/apt/sources.list >"$folder/parts/snapshot.list"
  fi
  grep -rq "$APT_SNAPSHOT" "$folder/parts" || fail "the base names no Ubuntu archive in /etc/apt"
}

folder=$(mktemp -d)
trap 'rm -rf "$folder" /var/lib/apt/lists/* /var/cache/apt/archives/*.deb /var/cache/apt/*.bin /var/log/apt /var/log/dpkg.log' EXIT
mkdir "$folder/parts"
export DEBIAN_FRONTEND=noninteractive
# shellcheck source=/dev/null
distribution=$(. /etc/os-release && echo "$ID")
case $distribution in
debian | ubuntu) "snapshots_of_$distribution" ;;
*) fail "no way to pin the packages of $distribution: Debian and Ubuntu are known" ;;
esac
if [ -s /run/secrets/ca ]; then ca=/run/secrets/ca; fi # Ubuntu's snapshots come over https
# apt knows where the snapshots of amd64's archive are; those of all other processors, of Ubuntu's ports, are there too.
ports='Acquire::Snapshots::URI::Host::ports.ubuntu.com=https://snapshot.ubuntu.com/ubuntu/@SNAPSHOTID@/'
from_snapshot() {
  apt-get -qq -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$folder/parts" \
    -o Acquire::Check-Valid-Until=false -o "$ports" ${ca:+-o "Acquire::https::CAInfo=$ca"} "$@"
}
from_snapshot update
from_snapshot install -y --no-install-recommends "$@"
