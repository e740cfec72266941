#!/usr/bin/env bash
# Compiles the controller as in its image, and installs it into a separate folder.
#
#   scripts/compiled.sh DIR
#
# Add DIR/site to PYTHONPATH. Takes two minutes and needs a C compiler; does nothing if DIR is up to date with the sources.
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
# Compile a copy: Python would prefer compiled modules beside their sources even after the sources have changed.
mkdir "$dir/source"
files | (cd "$sources" && xargs cp --parents -t "$dir/source")
HATCH_BUILD_HOOK_ENABLE_MYPYC=true "$top/.venv/bin/uv" build -q --wheel "$dir/source" -o "$dir/wheel"
"$top/.venv/bin/uv" pip install -q --python "$top/.venv/bin/python" --no-deps --target "$dir/site" "$dir"/wheel/*.whl
compgen -G "$dir/site/sos_controller/core/engine.*.so" >/dev/null || { echo "compiled: nothing was compiled into $dir/site" >&2; exit 1; }
echo "$stamp" >"$dir/stamp"
