#!/usr/bin/env bash
# Preserves flow entries and groups over a restart of Open vSwitch, which itself starts without entries.
#
#   flows.sh save FOLDER      saves entries and groups of all bridges; FOLDER is replaced atomically
#   flows.sh hold FOLDER      before the start of ovs-vswitchd: if FOLDER is not too old, the switch forwards no new flows until
#                             `restore` or `release`, and connects to no controller until `release`
#   flows.sh restore FOLDER   after the start: installs the saved entries and groups
#   flows.sh release          lets the switch forward and connect to its controllers, in any case
#
# Environment:
#   OVS_RUNDIR   folder of the sockets db.sock and BRIDGE.mgmt (default /run/openvswitch)
#
# Reason for the four steps: ovs-vswitchd drops a bridge's entries when it configures the bridge's first controller, so the entries must be
# installed after that, but before a controller connects. While flow-restore-wait is set, ovs-vswitchd configures no controller, and the
# cache of the kernel's datapath continues to forward. So `hold` gives the controllers addresses at which no process listens. `restore` ends
# the wait, so that ovs-vswitchd configures these controllers without a connection, and then installs the entries. `release` gives the
# controllers their own addresses back, and they find the entries.
#
# Entries keep their cookies and timeouts. The timeouts start again, so a lease of some seconds is prolonged by the restart. Ports keep
# their numbers, since the database stores them.
set -euo pipefail

rundir=${OVS_RUNDIR:-/run/openvswitch}
# Maximum age of saved entries: after a longer time, they no longer fit the running sessions.
readonly MAX_AGE_S=300
# Maximum wait for an answer of a daemon, and for a bridge to exist after a start.
readonly ANSWER_S=5
readonly BRIDGE_S=10
readonly OPENFLOW=OpenFlow13
# sos-node does not change a switch with this mark, up to a time limit.
readonly MARK=sos-restoring
readonly SAVED_TARGET=external_ids:sos-target

vsctl() { ovs-vsctl --timeout=$ANSWER_S --db="unix:$rundir/db.sock" "$@"; }

ofctl() {
    local command=$1 bridge=$2
    shift 2
    ovs-ofctl --timeout=$ANSWER_S -O $OPENFLOW "$command" "unix:$rundir/$bridge.mgmt" "$@"
}

save() {
    local folder=$1 bridge bridges
    # Lock, because a planned stop may save while a regular save is running.
    exec 9>"$folder.lock"
    flock --wait $ANSWER_S 9
    rm -rf "$folder.new" "$folder.old"
    mkdir -p "$folder.new"
    # Use a variable: an error within the `for` line would look like a switch without bridges.
    bridges=$(vsctl list-br)
    for bridge in $bridges; do
        # Remove the first line of an answer, its header; add-groups and add-flows read the other lines.
        ofctl dump-groups "$bridge" | sed '/^OFPST_/d' >"$folder.new/$bridge.groups"
        ofctl dump-flows "$bridge" --no-names --no-stats | sed '/^OFPST_/d' >"$folder.new/$bridge.flows"
    done
    [[ ! -e $folder ]] || mv -T "$folder" "$folder.old"
    mv -T "$folder.new" "$folder"
    rm -rf "$folder.old"
}

hold() {
    local folder=$1 age row rows number=0 command
    if [[ ! -d $folder ]]; then
        decline
        return 0
    fi
    age=$(($(date +%s) - $(stat -c %Y "$folder")))
    # A negative age means that the clock was ahead when the folder was written.
    if ((age < 0 || age > MAX_AGE_S)); then
        echo "flows.sh: $folder is ignored: it is $age s old, the limit is $MAX_AGE_S s" >&2
        decline
        return 0
    fi
    command=(set Open_vSwitch . other_config:flow-restore-wait=true "external_ids:$MARK=true")
    rows=$(vsctl --no-wait --bare --columns=_uuid list Controller)
    for row in $rows; do
        if [[ -z $(vsctl --no-wait --if-exists get Controller "$row" $SAVED_TARGET) ]]; then
            command+=(-- set Controller "$row" "$SAVED_TARGET=$(vsctl --no-wait get Controller "$row" target)")
        fi
        command+=(-- set Controller "$row" "target=\"unix:$rundir/nobody-$((number += 1))\"")
    done
    vsctl --no-wait "${command[@]}"
}

# Restore nothing. Remove the marks of a run that died before its `release`: a later run would otherwise install entries that are too old.
decline() {
    if held; then release; fi
}

held() { [[ -n $(vsctl --no-wait --if-exists get Open_vSwitch . "external_ids:$MARK") ]]; }

# True if a bridge answers within the time limit.
answers() {
    local bridge=$1 end=$((SECONDS + BRIDGE_S))
    until ofctl show "$bridge" >/dev/null 2>&1; do
        ((SECONDS < end)) || return 1
        sleep 0.1
    done
}

restore() {
    local folder=$1 file bridge whole status=0 bridges=()
    held || return 0
    for file in "$folder"/*.flows; do
        bridge=$(basename "$file" .flows)
        vsctl --no-wait br-exists "$bridge" || continue
        answers "$bridge" && bridges+=("$bridge")
    done
    # ovs-vsctl returns after ovs-vswitchd has applied the change and has dropped all entries.
    vsctl remove Open_vSwitch . other_config flow-restore-wait
    for bridge in "${bridges[@]}"; do
        # Groups first, because entries refer to them. Entries are added even if the groups fail.
        whole=true
        ofctl add-groups "$bridge" "$folder/$bridge.groups" || whole=false
        ofctl add-flows "$bridge" "$folder/$bridge.flows" || whole=false
        if ! $whole; then
            echo "flows.sh: the entries of $bridge are incomplete; controllers and sos-node install their entries later" >&2
            status=1
        fi
    done
    return $status
}

release() {
    local row rows target command
    command=(remove Open_vSwitch . other_config flow-restore-wait -- remove Open_vSwitch . external_ids "$MARK")
    rows=$(vsctl --no-wait --bare --columns=_uuid list Controller)
    for row in $rows; do
        target=$(vsctl --no-wait --if-exists get Controller "$row" $SAVED_TARGET)
        [[ -z $target ]] || command+=(-- set Controller "$row" "target=$target" -- remove Controller "$row" external_ids sos-target)
    done
    vsctl --no-wait "${command[@]}"
    # Verify the result, because a node whose switch still waits does not forward.
    [[ -z $(vsctl --no-wait --if-exists get Open_vSwitch . other_config:flow-restore-wait) ]]
}

usage() {
    echo "usage: flows.sh save|hold|restore FOLDER, or flows.sh release" >&2
    exit 2
}

case ${1-}:$# in
save:2 | hold:2 | restore:2 | release:1) "$@" ;;
*) usage ;;
esac
