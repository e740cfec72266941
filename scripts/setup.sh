#!/usr/bin/env bash
# Prepares a fresh Debian 12 machine for `make demo`, `make test` and ./lab, and prints each installation.
#
#   scripts/setup.sh lab     Debian packages, Python environment, the programs of a lab
#   scripts/setup.sh test    as lab, and the tools of the test suites (an API server, helm, promtool, Argo CD's sync)
#   scripts/setup.sh compiled    as lab, and the headers for compiling C modules for Python
#   scripts/setup.sh kernel  as lab, and what `make test-kernel` needs for its virtual machine
#   scripts/setup.sh arm64   as lab, and what `make test-arm64` needs: compiler and libraries for arm64, and an emulator
#   scripts/setup.sh --if-needed lab    as lab; does nothing if this source tree has been set up before
#
# Requires Python 3.11 or newer, Rust (cargo), Go (for `test` only) and apt. Safe to run again: existing installations are kept.
set -euo pipefail
top="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$top"

# Debian packages with their purpose.
readonly PACKAGES=(
  openvswitch-switch  # the switches (its service is not started)
  nftables            # redirection in the agents' network namespaces
  iproute2            # namespaces, veth pairs, routes, ss
  iputils-ping        # checks of the link emulator
  ethtool             # offload settings
  curl                # the client of every measurement
  nginx-light         # the server of every measurement (its service is not started)
  iperf3              # measurement of a link's capacity
  tcpdump             # captures of failed tests
  systemd             # systemd-analyze, which checks the agent's unit
  build-essential     # the linker and C compiler that Rust crates need
  python3-venv        # the Python environment
  ca-certificates git
)
# Packages that only tests need.
readonly TEST_PACKAGES=(
  nmap                # scans covered and plain ports
)
# Packages for virtual machines with another kernel (testbed/kernel).
readonly KERNEL_PACKAGES=(
  qemu-system-x86           # the virtual machine
  busybox-static cpio kmod  # its initial file system
  debian-archive-keyring    # Debian's keys, which verify kernel packages
)
# Packages that build programs for arm64, and run them on other architectures.
readonly ARM64_PACKAGES=(
  gcc-aarch64-linux-gnu libc6-dev-arm64-cross  # linker, compiler for the C code of crates, C library
  qemu-user                                    # emulation of a process
)
readonly ARM64_TARGET=aarch64-unknown-linux-gnu
readonly UV_VERSION=0.13.8

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

missing_packages() {
  local package
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^ii' || printf '%s\n' "$package"
  done
}

install_packages() {
  local missing
  mapfile -t missing < <(missing_packages "$@")
  [ "${#missing[@]}" -eq 0 ] || install "${missing[@]}"
}

install() {
  [ "$(id -u)" -eq 0 ] || die "needs root to install: $*"
  say "installing Debian packages: $*"
  # Another installation may hold the lock, such as unattended upgrades after the first boot.
  apt-get update -qq -o DPkg::Lock::Timeout=300
  without_services apt-get install -y -qq -o DPkg::Lock::Timeout=300 --no-install-recommends "$@" >/dev/null
}

# Headers for compiling C modules for Python. Most Python installations include them, but Debian's does not.
python_headers() {
  has_headers || install python3-dev
  has_headers || die "no Python.h for $(readlink -f .venv/bin/python): install what compiles C modules for that Python"
}

has_headers() {
  .venv/bin/python -c 'import pathlib, sys, sysconfig; sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())'
}

# Debian packages start their services at installation, but a lab needs no services. invoke-rc.d obeys policy-rc.d.
without_services() {
  local policy=/usr/sbin/policy-rc.d
  if [ -e "$policy" ]; then
    DEBIAN_FRONTEND=noninteractive "$@"
    return
  fi
  # remove the file on EXIT, too: otherwise services would never start on this machine after an interrupted installation
  trap 'rm -f /usr/sbin/policy-rc.d' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
  DEBIAN_FRONTEND=noninteractive "$@"
  rm -f "$policy"
  trap - EXIT
}

find_python() {
  local candidate
  for candidate in python3.11 python3 python3.12 python3.13 /usr/bin/python3; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  die "no Python 3.11 or newer on PATH"
}

python_environment() {
  if [ ! -x .venv/bin/python ]; then
    say "making a Python environment in .venv"
    "$(find_python)" -m venv .venv
  fi
  if [ ! -x .venv/bin/uv ]; then
    say "installing uv into .venv"
    .venv/bin/python -m pip install -q --disable-pip-version-check "uv==$UV_VERSION"
  fi
  say "installing Python packages of uv.lock into .venv"
  .venv/bin/uv sync --frozen -q
}

build() {
  command -v cargo >/dev/null || PATH="$PATH:$HOME/.cargo/bin"
  command -v cargo >/dev/null || die "no cargo on PATH (Rust is assumed)"
  say "building sos-agent, sos-node, sos-probe, sos-linkemu and what Open vSwitch preloads (a few minutes the first time)"
  cargo build --release --locked -q --manifest-path agent-image/Cargo.toml \
    -p sos-agent -p sos-node -p sos-probe -p sos-ovs-buffers
  cargo build --release --locked -q --manifest-path testbed/linkemu/Cargo.toml
}

# Rust's standard library for arm64, of the toolchain in use.
arm64_library() {
  PATH="$PATH:$HOME/.cargo/bin"
  if [ -d "$(rustc --print sysroot)/lib/rustlib/$ARM64_TARGET" ]; then return; fi
  command -v rustup >/dev/null || die "no Rust library for $ARM64_TARGET, and no rustup to install it"
  say "installing the Rust library for $ARM64_TARGET"
  rustup -q target add "$ARM64_TARGET"
}

# Hash of the set-up's inputs: the lock files and all compiled sources.
fingerprint() {
  {
    cat uv.lock pyproject.toml scripts/setup.sh ./*/pyproject.toml ./*/*/pyproject.toml
    find agent-image testbed/linkemu -name target -prune -o -type f \( -name '*.rs' -o -name 'Cargo.*' -o -name '*.toml' \) -print0 |
      LC_ALL=C sort -z | xargs -0 cat
    printf '%s' "${CARGO_TARGET_DIR:-}"
  } | sha256sum | cut -d' ' -f1
}

main() {
  local if_needed=no
  if [ "${1:-}" = --if-needed ]; then if_needed=yes; shift; fi
  local what="${1:-lab}" print stamp
  case "$what" in lab | test | compiled | kernel | arm64) ;; *) die "unknown: $what (lab, test, compiled, kernel or arm64)" ;; esac
  stamp=".venv/.set-up"
  print="$(fingerprint)"
  if [ "$if_needed" = no ] || [ "$(cat "$stamp" 2>/dev/null)" != "$print" ]; then
    install_packages "${PACKAGES[@]}"
    python_environment
    build
    printf '%s\n' "$print" >"$stamp"
  fi
  if [ "$what" = test ]; then
    install_packages "${TEST_PACKAGES[@]}"
    # prints its own progress; silent if all tools exist
    scripts/kube-tools.sh etcd kube-apiserver kube-controller-manager kubectl helm promtool gitops-state
  fi
  if [ "$what" = compiled ]; then python_headers; fi
  if [ "$what" = kernel ]; then install_packages "${KERNEL_PACKAGES[@]}"; fi
  if [ "$what" = arm64 ]; then
    install_packages "${ARM64_PACKAGES[@]}"
    arm64_library
  fi
}

main "$@"
