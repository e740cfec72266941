#!/usr/bin/env bash
# Builds kube-apiserver, kube-controller-manager, etcd, kubectl, helm, kind, kube-router, cni-bridge (the plugin `bridge`),
# promtool and gitops-state (Argo CD and Flux, operator/tests/gitops/state) from the Go module proxy, so that tests get a real
# API server, garbage collector and evaluator of alerts, and e2e tests their tools, on machines that can reach package
# registries but no container registry or download site.
#
#   scripts/kube-tools.sh                 build all missing tools, without kube-router, cni-bridge, promtool and gitops-state
#   scripts/kube-tools.sh helm kubectl    build only these tools, if missing
#   scripts/kube-tools.sh --where TOOL    print the path of TOOL (PATH first, then the cache); exit 1 if it is missing
#   scripts/kube-tools.sh --help
#
# A tool that is already on PATH is not built. Built tools go to ${SOS_CACHE:-$HOME/.cache/sos}/bin; the script writes only to
# ${SOS_CACHE:-$HOME/.cache/sos} and Go's own caches. It is safe to run repeatedly, and in two processes simultaneously.
set -euo pipefail

# Kubernetes stays at 1.34: newer kubelets refuse hosts with cgroup v1, and the API server under test must have the version
# of the e2e clusters.
readonly KUBERNETES_VERSION=v1.34.4
readonly ETCD_VERSION=v3.6.8
readonly HELM_VERSION=v3.20.2
readonly KIND_VERSION=v0.33.0
readonly KUBE_ROUTER_VERSION=v2.1.0
readonly CNI_PLUGINS_VERSION=v1.9.1 # of the plugins in kind's node images
readonly PROMETHEUS_VERSION=v0.313.5 # the module of Prometheus 3.13
readonly USUAL_TOOLS=(etcd kubectl kube-apiserver kube-controller-manager helm kind)
readonly ALL_TOOLS=("${USUAL_TOOLS[@]}" kube-router cni-bridge promtool gitops-state)

cache="${SOS_CACHE:-$HOME/.cache/sos}"
bin="$cache/bin"
# Versions are part of the path, so that a version change never mixes two builds.
work="$cache/src/kube-tools"
state="$(cd "$(dirname "${BASH_SOURCE[0]}")/../operator/tests/gitops/state" && pwd)"

say() { printf 'kube-tools: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# The module's own replace directives (k8s.io staging modules at v0.0.0) do not apply to importers, so they are repeated here.
kubernetes_go_mod() {
  local module_file=$1 staging
  staging="v0.${KUBERNETES_VERSION#v1.}"
  printf 'module sos.network/tools/kubernetes\n\n'
  grep -E '^go [0-9.]+$' "$module_file"
  printf '\nrequire k8s.io/kubernetes %s\n\nreplace (\n' "$KUBERNETES_VERSION"
  grep -oE '^[[:space:]]+k8s\.io/[a-z0-9-]+ v0\.0\.0$' "$module_file" | awk '{print $1}' | sort -u |
    while read -r name; do printf '\t%s => %s %s\n' "$name" "$name" "$staging"; done
  printf ')\n'
}

kubernetes_ldflags() {
  local minor=${KUBERNETES_VERSION#v1.} package
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    printf ' -X %s.gitVersion=%s -X %s.gitMajor=1 -X %s.gitMinor=%s -X %s.gitTreeState=clean' \
      "$package" "$KUBERNETES_VERSION" "$package" "$package" "${minor%%.*}" "$package"
  done
}

module_file_of() { go mod download -json "$1" | sed -n 's/^[[:space:]]*"GoMod": "\(.*\)",\{0,1\}$/\1/p'; }

# build NAME MODULE VERSION PACKAGE LDFLAGS: build one binary, and move it into place only when it is complete.
build() {
  local name=$1 module=$2 version=$3 package=$4 ldflags=$5
  local folder="$work/${module//\//_}@$version" log
  log="$folder/$name.log"
  mkdir -p "$folder" "$bin"
  cd "$folder"
  if [ ! -f go.mod ]; then
    if [ "$module" = k8s.io/kubernetes ]; then
      kubernetes_go_mod "$(module_file_of "$module@$version")" >go.mod.new
    else
      printf 'module sos.network/tools/%s\n\n' "$name" >go.mod.new
      grep -E '^go [0-9.]+$' "$(module_file_of "$module@$version")" >>go.mod.new
      printf '\nrequire %s %s\n' "$module" "$version" >>go.mod.new
    fi
    mv go.mod.new go.mod
  fi
  say "building $name $version ..."
  CGO_ENABLED=0 go build -mod=mod -trimpath -ldflags "-s -w$ldflags" -o "$folder/$name.new" "$package" >"$log" 2>&1 ||
    { tail -n 20 "$log" >&2; die "$name did not build; the whole output is in $log"; }
  mv "$folder/$name.new" "$bin/$name"
}

# Builds the program of this repository, and removes the builds of its earlier sources (97 MB each).
build_state() {
  local name log="$work/gitops-state.log"
  name="$(file_of gitops-state)"
  mkdir -p "$bin"
  say "building gitops-state ..."
  CGO_ENABLED=0 go -C "$state" build -trimpath -ldflags "-s -w" -o "$work/$name.new" . >"$log" 2>&1 ||
    { tail -n 20 "$log" >&2; die "gitops-state did not build; the whole output is in $log"; }
  rm -f "$bin"/gitops-state-*
  mv "$work/$name.new" "$bin/$name"
}

make_tool() {
  local helm_flags="-X helm.sh/helm/v3/internal/version.version=$HELM_VERSION"
  # Helm derives the Kubernetes version that it reports from these variables (used by `helm template` and kubeVersion checks).
  helm_flags+=" -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor=34"
  helm_flags+=" -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=34"
  case $1 in
    kube-apiserver | kube-controller-manager | kubectl)
      build "$1" k8s.io/kubernetes "$KUBERNETES_VERSION" "k8s.io/kubernetes/cmd/$1" "$(kubernetes_ldflags)" ;;
    etcd) build etcd go.etcd.io/etcd/server/v3 "$ETCD_VERSION" go.etcd.io/etcd/server/v3 "" ;;
    helm) build helm helm.sh/helm/v3 "$HELM_VERSION" helm.sh/helm/v3/cmd/helm " $helm_flags" ;;
    kube-router)
      build kube-router github.com/cloudnativelabs/kube-router/v2 "$KUBE_ROUTER_VERSION" \
        github.com/cloudnativelabs/kube-router/v2/cmd/kube-router "" ;;
    cni-bridge)
      build cni-bridge github.com/containernetworking/plugins "$CNI_PLUGINS_VERSION" \
        github.com/containernetworking/plugins/plugins/main/bridge "" ;;
    promtool) # tests of rules need no service discovery; its clients of all clouds would take most of the build
      GOFLAGS="$GOFLAGS -tags=remove_all_sd" build promtool github.com/prometheus/prometheus "$PROMETHEUS_VERSION" \
        github.com/prometheus/prometheus/cmd/promtool "" ;;
    gitops-state) build_state ;;
    kind) build kind sigs.k8s.io/kind "$KIND_VERSION" sigs.k8s.io/kind "" ;;
    *) die "unknown tool: $1 (known: ${ALL_TOOLS[*]})" ;;
  esac
}

# Name of a tool's file. That of gitops-state contains a hash of its sources: other sources are another program.
file_of() {
  [ "$1" = gitops-state ] || { printf '%s\n' "$1"; return; }
  printf 'gitops-state-%s\n' "$(cat "$state"/*.go "$state"/go.{mod,sum} | sha256sum | cut -c1-12)"
}

where() {
  local name
  name="$(file_of "$1")"
  command -v "$name" 2>/dev/null || { [ -x "$bin/$name" ] && printf '%s\n' "$bin/$name"; }
}

main() {
  case "${1:-}" in
    -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    --where) [ $# -eq 2 ] || die "--where takes one tool"; where "$2"; exit ;;
    -*) die "unknown option $1 (see --help)" ;;
  esac
  local tool missing=()
  for tool in "${@:-${USUAL_TOOLS[@]}}"; do
    [[ " ${ALL_TOOLS[*]} " == *" $tool "* ]] || die "unknown tool: $tool (known: ${ALL_TOOLS[*]})"
    where "$tool" >/dev/null || missing+=("$tool")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  command -v go >/dev/null || die "Go is needed to build: ${missing[*]}"
  mkdir -p "$work"
  exec 9>"$cache/kube-tools.lock"
  flock 9
  say "building ${missing[*]} from the Go module proxy into $bin (once; some minutes, about 2 GB of Go cache)"
  for tool in "${missing[@]}"; do
    local started=$SECONDS
    where "$tool" >/dev/null && continue # another process built it while this process waited for the lock
    (make_tool "$tool")
    say "$tool ready in $((SECONDS - started)) s"
  done
}

export GOFLAGS="${GOFLAGS:--buildvcs=false}" GOTOOLCHAIN="${GOTOOLCHAIN:-local}"
main "$@"
