#!/usr/bin/env bash
# Keeps flow entries and groups over a restart of Open vSwitch, which by itself begins with none.
#
#   flows.sh save FOLDER      writes down what all bridges have; FOLDER is replaced as a whole or not at all
#   flows.sh hold FOLDER      before ovs-vswitchd starts: if FOLDER holds something that is not too old, nothing is forwarded anew and
#                             no controller is called until `release`
#   flows.sh restore FOLDER   after it started: installs what was written down
#   flows.sh release          lets it forward and call its controllers, whatever came before
#
# Environment:
#   OVS_RUNDIR   where the sockets db.sock and BRIDGE.mgmt are (default /run/openvswitch)
#
# Why it takes four steps: ovs-vswitchd forgets a bridge's entries when its first controller is configured, and while
# flow-restore-wait is set, which keeps the cache of the kernel's datapath forwarding, it has none configured. So the controllers
# are given an address where nobody is, that they count but do not call; the wait is ended; entries are installed; and then the
# controllers get their addresses back and find the entries there.
#
# Entries keep their cookies and timeouts, which begin anew: a lease of some seconds lasts that much longer. Ports keep their
# numbers, since the database remembers them.
set -euo pipefail

rundir=${OVS_RUNDIR:-/run/openvswitch}
# A restart that took longer than this met other sessions than those that the entries were for.
readonly MAX_AGE_S=300
# Longest wait for one answer of a daemon, and for a bridge to be there again after a start.
readonly ANSWER_S=5
readonly BRIDGE_S=10
readonly OPENFLOW=OpenFlow13
# sos-node leaves a switch alone that has this mark, for as long as it is patient.
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
    # One at a time: a planned stop does not wait for the next regular turn.
    exec 9>"$folder.lock"
    flock --wait $ANSWER_S 9
    rm -rf "$folder.new" "$folder.old"
    mkdir -p "$folder.new"
    # By way of a variable: an error inside of a `for` would pass for a switch without bridges.
    bridges=$(vsctl list-br)
    for bridge in $bridges; do
        # The first line of an answer is its header; what follows is what add-groups and add-flows read.
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
    # A folder of a time to come was written by a clock that was ahead.
    if ((age < 0 || age > MAX_AGE_S)); then
        echo "flows.sh: $folder is $age s old and is left aside; the limit is $MAX_AGE_S s" >&2
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

# Nothing will be restored. A run that died before its `release` has left marks, by which a later one would install what is too old.
decline() {
    if held; then release; fi
}

held() { [[ -n $(vsctl --no-wait --if-exists get Open_vSwitch . "external_ids:$MARK") ]]; }

# Whether a bridge answers before the wait is over.
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
    # Returns when ovs-vswitchd has done it, and with it forgotten what entries there were.
    vsctl remove Open_vSwitch . other_config flow-restore-wait
    for bridge in "${bridges[@]}"; do
        # Groups first, because entries name them; and entries whatever became of the groups.
        whole=true
        ofctl add-groups "$bridge" "$folder/$bridge.groups" || whole=false
        ofctl add-flows "$bridge" "$folder/$bridge.flows" || whole=false
        if ! $whole; then
            echo "flows.sh: the entries of $bridge are not complete; controllers and sos-node install theirs when they come" >&2
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
    # A node whose switch still waits forwards nothing, so it is looked at.
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
