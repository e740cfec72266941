#!/usr/bin/env bash
# Loads modules of the node's kernel, before its switch starts. For an init container of its own: nothing else of SOS may load any.
#
#   modules.sh [--want MODULE | --need MODULE]...
#
# A module that is there already is left alone. One that is wanted and cannot be loaded is named, with what is missing without it, and
# passed over: Open vSwitch in user space needs none. One that is needed and cannot be loaded ends this with status 1, after all others.
#
# Needs the capability SYS_MODULE and the node's /lib/modules. The node's /etc/modprobe.d is not seen: a module that is kept from loading
# there is loaded here.
set -euo pipefail

usage() {
    echo "usage: modules.sh [--want MODULE | --need MODULE]..." >&2
    exit 2
}

without() {
    case $1 in
    openvswitch) echo "the bridge forwards in user space, unless spec.datapath.type of its SosSite is System" ;;
    vxlan) echo "tunnels between nodes of Overlay sites cannot be made" ;;
    *) echo "what needs it does not work" ;;
    esac
}

# Prints what became of it; fails if the kernel does not have it afterwards.
load() {
    local module=$1 said
    if [[ -d /sys/module/$module ]]; then
        echo "modules.sh: $module: there already"
    elif said=$(modprobe -- "$module" 2>&1); then
        echo "modules.sh: $module: loaded"
    else
        echo "modules.sh: $module: not loaded (${said:-modprobe gives no reason}); without it $(without "$module")" >&2
        return 1
    fi
}

missing=()
while (($# > 0)); do
    # A name, and no option of modprobe's.
    [[ $# -ge 2 && $2 =~ ^[a-zA-Z0-9_]+$ ]] || usage
    case $1 in
    --want) load "$2" || true ;;
    --need) load "$2" || missing+=("$2") ;;
    *) usage ;;
    esac
    shift 2
done
if ((${#missing[@]} > 0)); then
    echo "modules.sh: needed, and not there: ${missing[*]}. Load it on the node, or set spec.datapath.type of the SosSite to Auto" >&2
    exit 1
fi
