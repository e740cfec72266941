#!/usr/bin/env bash
# Loads modules of the node's kernel before its switch starts. Runs in a separate init container: no other part of SOS may load modules.
#
#   modules.sh [--want MODULE | --need MODULE]...
#
# A loaded module is not changed. If a wanted module cannot be loaded, the script prints its name and the missing function, and continues:
# Open vSwitch in user space needs no module. If a needed module cannot be loaded, the script exits with status 1 after all other modules.
#
# Needs the capability SYS_MODULE and the node's /lib/modules. The node's /etc/modprobe.d is not mounted, so this script also loads a module
# that the node's configuration excludes.
set -euo pipefail

usage() {
    echo "usage: modules.sh [--want MODULE | --need MODULE]..." >&2
    exit 2
}

without() {
    case $1 in
    openvswitch) echo "the bridge forwards in user space, unless spec.datapath.type of its SosSite is System" ;;
    vxlan) echo "tunnels between nodes of Overlay sites cannot be created" ;;
    *) echo "functions that need it do not work" ;;
    esac
}

# Prints the result of loading a module; fails if the kernel does not have the module afterwards.
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
    # Accept only a module name, not an option of modprobe.
    [[ $# -ge 2 && $2 =~ ^[a-zA-Z0-9_]+$ ]] || usage
    case $1 in
    --want) load "$2" || true ;;
    --need) load "$2" || missing+=("$2") ;;
    *) usage ;;
    esac
    shift 2
done
if ((${#missing[@]} > 0)); then
    echo "modules.sh: needed but not loaded: ${missing[*]}. Load it on the node, or set spec.datapath.type of the SosSite to Auto" >&2
    exit 1
fi
