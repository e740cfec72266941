#!/usr/bin/env bash
# Runs Open vSwitch's two daemons in the foreground until one of them ends or we are told to.
#
#   start.sh [RUNDIR]
#
# Environment:
#   OVS_RUNDIR          sockets and pid files, if no RUNDIR is given (default /run/openvswitch)
#   OVS_DBDIR           folder of the database conf.db (default: RUNDIR)
#   OVS_USERSPACE_TSO   true or false: segmentation offload of the datapath in user space (default true). Packets keep
#                       their checksums only if nothing but MAC addresses is rewritten; sos-node switches the ports' own
#                       offloads off where the node-config does not want this one. Read by ovs-vswitchd at its start only.
#   OVS_HANDLERS        threads that look up the first packet of a flow (default 2)
#   OVS_REVALIDATORS    threads that check flows of the datapath again (default 1)
#   OVS_BUFFERS         library that gives the ports of the datapath in user space room for bursts, and keeps the size of TCP
#                       segments (buffers/, default /usr/local/lib/libsos_ovs_buffers.so); without it they have what the kernel
#                       gives every socket, and segments are cut by the port's MTU (docs/adr/0043)
#   OVS_LOG_LEVEL       emer, err, warn, info or dbg (default info)
#
# Flow entries and groups are kept in RUNDIR/flows (flows.sh): written down every ten seconds and before a planned stop, and back
# before a controller is called.
#
# The log goes to standard error, whose size is bounded by whoever collects it; nothing is written to log files.
# SIGTERM ends both daemons; bridges, ports and tunnel devices stay in the database and in the kernel.
set -euo pipefail

rundir=${1:-${OVS_RUNDIR:-/run/openvswitch}}
dbdir=${OVS_DBDIR:-$rundir}
tso=${OVS_USERSPACE_TSO:-true}
# Open vSwitch starts a thread per core otherwise: on a machine with many, dozens that are woken for what one or two do, each with a
# stack and an arena of its own. A site's bridge carries few flows, long ones. A datapath in the kernel that hands packets over per core
# keeps its own number of handlers; that of revalidators counts in any case.
handlers=${OVS_HANDLERS:-2}
revalidators=${OVS_REVALIDATORS:-1}
buffers=${OVS_BUFFERS:-/usr/local/lib/libsos_ovs_buffers.so}
level=${OVS_LOG_LEVEL:-info}
schema=/usr/share/openvswitch/vswitch.ovsschema
database=$dbdir/conf.db
socket=unix:$rundir/db.sock
flows=$rundir/flows
keep_flows=$(dirname "$(readlink -f "$0")")/flows.sh
# So often entries are written down: a daemon that is killed loses what came after.
readonly KEEP_EVERY_S=10
# Longest wait for entries to be put back. Then the switch forwards without them: what is missing, others install.
readonly RESTORE_S=20
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
# What daemons of an earlier container left: their pids mean other processes here, their sockets nobody.
rm -f "$rundir"/ovsdb-server.{pid,ctl} "$rundir"/ovs-vswitchd.{pid,ctl} "$rundir"/db.sock "$rundir"/*.mgmt "$rundir"/*.snoop

if [[ ! -e $database ]]; then
    # Made aside, so that a container stopped in between leaves no half a database.
    rm -f "$database.new" && ovsdb-tool create "$database.new" "$schema" && mv "$database.new" "$database"
elif [[ $(ovsdb-tool needs-conversion "$database" "$schema") == yes ]]; then
    ovsdb-tool convert "$database" "$schema"
fi

database_pid='' switch_pid='' keeper_pid=''

# Without this the node forwards nothing, so it is tried again.
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
        "$keep_flows" save "$flows" || echo "start.sh: the entries were not written down" >&2
    done
}

# The switch first: without the database it would only complain.
stop() {
    local pid
    for pid in $keeper_pid $switch_pid $database_pid; do
        kill -TERM "$pid" 2>/dev/null || continue
        wait "$pid" || true
    done
}

planned() {
    # Of a switch that was told to go while it still waited for its entries there is nothing to write down.
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
    echo "start.sh: OVS_BUFFERS: there is no $buffers; ports lose bursts of more than some two hundred kilobytes, and segments are cut by their MTU" >&2
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

# One without the other is no switch: end both, and let whoever started us start us again.
status=0
wait -n "$database_pid" "$switch_pid" || status=$?
echo "start.sh: a daemon ended with status $status" >&2
stop
exit 1
