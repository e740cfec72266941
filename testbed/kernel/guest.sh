#!/usr/bin/env bash
# Main program of the virtual machine: loads the modules of a node, runs the selected scenarios, and switches the machine off.
# /run/sos-kernel is the folder of this run on the host (sos_kernel/machine.py).
set -uo pipefail
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 PYTHONSAFEPATH=1
readonly RESULTS=/run/sos-kernel
# shellcheck disable=SC1091 # written for each run
. "$RESULTS/settings" # exports TOP, PYTHON and the environment of the scenarios

# openvswitch and vxlan: the switches; the others: hosts and agents, which request most of them by autoloading
readonly MODULES=(openvswitch vxlan veth tun 8021q sch_fq tcp_bbr tls nf_tables nft_tproxy nft_queue nfnetlink_queue nfnetlink_log)

main() {
  local module
  ip link set lo up
  mount -t cgroup2 cgroup /sys/fs/cgroup
  for module in "${MODULES[@]}"; do
    modprobe "$module" || echo "guest: no module $module in $(uname -r)"
  done
  echo "guest: Linux $(uname -r), $(nproc) processors, time factor $SOS_TIME_FACTOR"
  cd "$TOP" || return
  "$PYTHON" testbed/kernel/guest.py "$RESULTS"/group-*.arguments
}

main
echo "guest: up $(cut -d' ' -f1 /proc/uptime) s"
sync
echo o >/proc/sysrq-trigger
sleep 60 # until the machine is off
