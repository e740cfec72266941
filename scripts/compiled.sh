#!/usr/bin/env bash
# Compiles the controller as its image does, and installs it into a folder of its own.
#
#   scripts/compiled.sh DIR
#
# DIR/site is for PYTHONPATH. Takes two minutes and a C compiler; nothing is done when DIR already has what the sources give.
set -euo pipefail
top="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
[ $# -eq 1 ] || { echo "usage: scripts/compiled.sh DIR" >&2; exit 2; }
mkdir -p "$1"
dir="$(cd "$1" && pwd)"
sources="$top/controller-image"

files() { cd "$sources" && find pyproject.toml src -name '*.py' -o -name pyproject.toml | LC_ALL=C sort; }

stamp="$("$top/.venv/bin/python" -VV | tr '\n' ' '; (files | (cd "$sources" && xargs sha256sum)) | sha256sum)"
if [ -e "$dir/stamp" ] && [ "$(cat "$dir/stamp")" = "$stamp" ]; then exit 0; fi

echo "compiled: compiling the controller (two minutes)"
rm -rf "${dir:?}/stamp" "$dir/source" "$dir/wheel" "$dir/site"
# A copy: modules compiled beside their sources would be taken in their place, also when those have changed.
mkdir "$dir/source"
files | (cd "$sources" && xargs cp --parents -t "$dir/source")
HATCH_BUILD_HOOK_ENABLE_MYPYC=true "$top/.venv/bin/uv" build -q --wheel "$dir/source" -o "$dir/wheel"
"$top/.venv/bin/uv" pip install -q --python "$top/.venv/bin/python" --no-deps --target "$dir/site" "$dir"/wheel/*.whl
[ -e "$dir"/site/sos_controller/core/engine.*.so ] || { echo "compiled: nothing was compiled into $dir/site" >&2; exit 1; }
echo "$stamp" >"$dir/stamp"
