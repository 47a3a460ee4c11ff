#!/bin/sh
# ascend.sh run|build: what the Ascend images need of their system, from Ubuntu's snapshot (apt.sh) or openEuler's archive,
# which has none: there the packages are those of the day.
# g++: torch.compile and Triton build kernels at run time; clang: triton-ascend. numactl: vllm-ascend binds its processes to
# cores. jemalloc: cann.sh. ssh: the launcher's way to other hosts. git: for images made from this one.
set -eu

from_openeuler() {
  if [ -s /run/secrets/ca ]; then ca=/run/secrets/ca; fi
  dnf -q -y --setopt=install_weak_deps=False ${ca:+--setopt=sslcacert=$ca} install "$@"
  dnf -q clean all
  rm -rf /var/cache/dnf /var/cache/yum /var/log/dnf*
}

apt=$(dirname "$0")/apt.sh
# shellcheck source=/dev/null
distribution=$(. /etc/os-release && echo "$ID")
case $distribution-$1 in
openEuler-run) from_openeuler ca-certificates clang gcc-c++ git iproute jemalloc numactl openssh-clients procps-ng ;;
openEuler-build) from_openeuler cmake make patch ;;
*-run)
  "$apt" ca-certificates clang-15 g++ git iproute2 libjemalloc2 libnuma1 numactl openssh-client procps tini
  update-alternatives --install /usr/bin/clang clang /usr/bin/clang-15 20
  update-alternatives --install /usr/bin/clang++ clang++ /usr/bin/clang++-15 20
  ;;
*-build) "$apt" cmake make patch ;;
esac
