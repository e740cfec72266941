#!/usr/bin/env bash
# Writes all CustomResourceDefinitions as one file, for installations without the chart's CRDs (crds.enabled: false).
#
#   scripts/crds.sh FILE
#
# The file has the same objects as the chart, sorted by name. FILE is replaced atomically.
set -euo pipefail
top="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
[ $# -eq 1 ] || { echo "usage: scripts/crds.sh FILE" >&2; exit 2; }
file=$1
# Label of all CRDs, by which users list, wait for and delete them together.
readonly LABEL='    app.kubernetes.io/part-of: sos'

version="${VERSION:-$(sed -n 's/^appVersion: //p' "$top/charts/sos/Chart.yaml")}"
mkdir -p "$(dirname "$file")"
new="$(mktemp "$file.XXXXXX")"
trap 'rm -f "$new"' EXIT
echo "# CustomResourceDefinitions of SOS $version. docs/install.md says how to use this file." >"$new"
for crd in "$top"/crds/*.yaml; do
  grep -qxF "$LABEL" "$crd" || { echo "crds: $crd has no label app.kubernetes.io/part-of: sos" >&2; exit 1; }
  { echo "---"; cat "$crd"; } >>"$new"
done
chmod 644 "$new"
mv "$new" "$file"
echo "crds: $file written"
