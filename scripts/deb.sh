#!/usr/bin/env bash
# Builds the Debian package of the agent for machines outside Kubernetes (docs/concepts/machines.md).
#
#   scripts/deb.sh FOLDER
#
# Requires the built agent (scripts/setup.sh, or SOS_BIN_AGENT) and dpkg-deb. The package has the binary and the unit; `kubectl sos enroll`
# writes the enrollment, without which the unit does not start.
set -euo pipefail
top="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
[ $# -eq 1 ] || { echo "usage: scripts/deb.sh FOLDER" >&2; exit 2; }
folder=$1
agent="${SOS_BIN_AGENT:-$top/agent-image/target/release/sos-agent}"
[ -x "$agent" ] || { echo "deb: $agent is missing: run scripts/setup.sh lab first" >&2; exit 1; }

version="$(sed -n 's/^version = "\(.*\)"/\1/p' "$top/agent-image/Cargo.toml" | head -1)"
architecture="$(dpkg --print-architecture)"
# The binary needs the C library that it was linked with, or a newer one.
libc="$(objdump -T "$agent" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1 | cut -d_ -f2)"
root="$(mktemp -d)"
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

install -D -m 755 -s "$agent" "$root/usr/bin/sos-agent"
install -D -m 644 "$top/operator/kubectl-plugin/src/sos_kubectl/enrollment/sos-agent.service" "$root/usr/lib/systemd/system/sos-agent.service"
install -D -m 644 "$top/LICENSE" "$root/usr/share/doc/sos-agent/copyright"
install -d -m 755 "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<EOF
Package: sos-agent
Version: $version
Architecture: $architecture
Maintainer: SOS <sos@localhost>
Section: net
Priority: optional
Depends: libc6 (>= $libc), nftables, iproute2
Description: agent of SOS for routers and gateways outside Kubernetes
 Accelerates TCP connections between the hosts behind this machine and a site
 of a Kubernetes cluster. The agent gets its configuration from the cluster:
 "kubectl sos enroll" writes the file /etc/sos/enrollment.json.
EOF
# Restart after an upgrade, if the agent runs; stop before the removal.
cat >"$root/DEBIAN/postinst" <<'EOF'
#!/bin/sh
set -e
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
systemctl try-restart sos-agent.service
EOF
cat >"$root/DEBIAN/prerm" <<'EOF'
#!/bin/sh
set -e
[ "$1" = remove ] && [ -d /run/systemd/system ] || exit 0
systemctl disable --now sos-agent.service
EOF
chmod 755 "$root/DEBIAN/postinst" "$root/DEBIAN/prerm"

mkdir -p "$folder"
file="$folder/sos-agent_${version}_$architecture.deb"
dpkg-deb --build --root-owner-group -Zxz "$root" "$file" >/dev/null
echo "deb: $file written"
