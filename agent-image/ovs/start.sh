#!/usr/bin/env bash
# Runs the two daemons of Open vSwitch in the foreground until one of them exits or the script receives SIGTERM or SIGINT.
#
#   start.sh [RUNDIR]
#
# Environment:
#   OVS_RUNDIR          sockets and pid files, if no RUNDIR is given (default /run/openvswitch)
#   OVS_DBDIR           folder of the database conf.db (default: RUNDIR)
#   OVS_USERSPACE_TSO   true or false: segmentation offload of the datapath in user space (default true). Packets keep
#                       correct checksums only if no fields except MAC addresses are rewritten. If the node-config does not
#                       expect this offload, sos-node disables the ports' own offloads. ovs-vswitchd reads the setting only at its start.
#   OVS_HANDLERS        threads that look up the first packet of a flow (default 2)
#   OVS_REVALIDATORS    threads that revalidate flows of the datapath (default 1)
#   OVS_BUFFERS         library that enlarges the receive buffers of the user-space datapath's ports, and keeps the size of TCP
#                       segments (buffers/, default /usr/local/lib/libsos_ovs_buffers.so). Without it ports have the kernel's
#                       default buffer, and segments are cut by the port's MTU (docs/adr/0043)
#   OVS_LOG_LEVEL       emer, err, warn, info or dbg (default info)
#
# Flow entries and groups are stored in RUNDIR/flows (flows.sh). They are saved every ten seconds and before a planned stop, and
# restored before the switch connects to a controller.
#
# The log goes to standard error, whose collector bounds its size; there are no log files.
# SIGTERM ends both daemons; bridges, ports and tunnel devices stay in the database and in the kernel. While RUNDIR/sos-node.hold exists,
# the daemons end only when the file is gone: sos-node may remove the bridge at its own SIGTERM, for which it needs them.
set -euo pipefail

rundir=${1:-${OVS_RUNDIR:-/run/openvswitch}}
dbdir=${OVS_DBDIR:-$rundir}
tso=${OVS_USERSPACE_TSO:-true}
# By default Open vSwitch starts a thread per core. On a machine with many cores, these are dozens of threads for the work of one or two,
# each with its own stack and memory arena. A site's bridge carries few but long flows. A kernel datapath with per-core upcalls ignores
# the number of handlers; the number of revalidators always applies.
handlers=${OVS_HANDLERS:-2}
revalidators=${OVS_REVALIDATORS:-1}
buffers=${OVS_BUFFERS:-/usr/local/lib/libsos_ovs_buffers.so}
level=${OVS_LOG_LEVEL:-info}
schema=/usr/share/openvswitch/vswitch.ovsschema
database=$dbdir/conf.db
socket=unix:$rundir/db.sock
flows=$rundir/flows
keep_flows=$(dirname "$(readlink -f "$0")")/flows.sh
# Interval at which entries are saved. A killed daemon loses the entries that were added after the last save.
readonly KEEP_EVERY_S=10
# Maximum time to restore entries. After that the switch forwards without them; sos-node and controllers install missing entries.
readonly RESTORE_S=20
# Maximum wait for sos-node, which ends within 40 s; the kubelet kills both containers after 60 s (terminationGracePeriodSeconds).
readonly HOLD_S=42
hold=$rundir/sos-node.hold
log=(-vconsole:"$level" -vsyslog:off -vfile:off -vPATTERN:console:'%D{%Y-%m-%dT%H:%M:%S.###Z}|%A|%c|%p|%m')

case $tso in
true | false) ;;
*)
    echo "start.sh: OVS_USERSPACE_TSO: '$tso' is neither true nor false" >&2
    exit 2
    ;;
esac

for threads in "$handlers" "$revalidators"; do
    if [[ ! $threads =~ ^[1-9][0-9]{0,2}$ ]]; then
        echo "start.sh: OVS_HANDLERS, OVS_REVALIDATORS: '$threads' is not a number from 1 to 999" >&2
        exit 2
    fi
done

export OVS_RUNDIR=$rundir OVS_DBDIR=$dbdir
mkdir -p "$rundir" "$dbdir"
# Remove files of an earlier container's daemons: their pids belong to other processes here, and their sockets to no process.
rm -f "$rundir"/ovsdb-server.{pid,ctl} "$rundir"/ovs-vswitchd.{pid,ctl} "$rundir"/db.sock "$rundir"/*.mgmt "$rundir"/*.snoop

if [[ ! -e $database ]]; then
    # Create the database under another name first, so that a container stopped meanwhile leaves no partial database.
    rm -f "$database.new" && ovsdb-tool create "$database.new" "$schema" && mv "$database.new" "$database"
elif [[ $(ovsdb-tool needs-conversion "$database" "$schema") == yes ]]; then
    ovsdb-tool convert "$database" "$schema"
fi

database_pid='' switch_pid='' keeper_pid=''

# Retry, because without the release the node does not forward.
release() {
    local try
    for try in 1 2 3 4 5; do
        if "$keep_flows" release; then
            return 0
        fi
        echo "start.sh: the switch still waits for its entries (attempt $try)" >&2
        sleep 1
    done
    return 1
}

keep() {
    while sleep $KEEP_EVERY_S; do
        "$keep_flows" save "$flows" || echo "start.sh: the entries were not saved" >&2
    done
}

# Stop the switch first: without the database it would only log errors.
stop() {
    local pid
    for pid in $keeper_pid $switch_pid $database_pid; do
        kill -TERM "$pid" 2>/dev/null || continue
        wait "$pid" || true
    done
}

await_node() {
    local end=$((SECONDS + HOLD_S))
    while [[ -e $hold ]] && ((SECONDS < end)); do
        sleep 0.2
    done
}

planned() {
    await_node
    # While the switch still waits for its saved entries, it has no entries to save.
    [[ -z $keeper_pid ]] || timeout $RESTORE_S "$keep_flows" save "$flows" || true
    stop
    exit 0
}
trap planned TERM INT

ovsdb-server "$database" --remote=punix:"$rundir/db.sock" --pidfile="$rundir/ovsdb-server.pid" \
    --unixctl="$rundir/ovsdb-server.ctl" --no-chdir "${log[@]}" &
database_pid=$!

version=$(ovs-vswitchd --version | sed -n '1s/.* //p')
if ! ovs-vsctl --db="$socket" --retry --timeout=30 --no-wait -- init -- \
    set Open_vSwitch . ovs-version="$version" other_config:userspace-tso-enable="$tso" \
    other_config:n-handler-threads="$handlers" other_config:n-revalidator-threads="$revalidators"; then
    stop
    exit 1
fi

"$keep_flows" hold "$flows" || echo "start.sh: the switch starts without its entries" >&2

if [[ ! -r $buffers ]]; then
    echo "start.sh: OVS_BUFFERS: $buffers does not exist; ports lose bursts of more than about 200 kilobytes, and segments are cut by the port's MTU" >&2
    buffers=''
fi
LD_PRELOAD=$buffers ovs-vswitchd "$socket" --pidfile="$rundir/ovs-vswitchd.pid" --unixctl="$rundir/ovs-vswitchd.ctl" --no-chdir "${log[@]}" &
switch_pid=$!

timeout $RESTORE_S "$keep_flows" restore "$flows" || true
if ! release; then
    stop
    exit 1
fi
keep &
keeper_pid=$!

# Both daemons are needed: after one has exited, stop the other, so that the container is restarted.
status=0
wait -n "$database_pid" "$switch_pid" || status=$?
echo "start.sh: a daemon exited with status $status" >&2
stop
exit 1
