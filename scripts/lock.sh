#!/usr/bin/env bash
# Resolves pyproject.toml and writes the pinned lists that the Makefile installs: names and versions, no addresses.
# In: pyproject.toml. Out: requirements/services.txt, requirements/train.txt (CPU), requirements/train-gpu.txt (stock SGLang).
set -euo pipefail
cd "$(dirname "$0")/.."
uv="$PWD/.tools/bin/uv"
export UV_PYTHON="$PWD/.tools/bin/python"

export_list() { # export_list FILE ARGUMENTS...: one environment; its markers hold on every machine we support, so they go
  local file="$1"
  shift
  "$uv" export -q --frozen --no-hashes --no-emit-project --no-annotate --no-header "$@" | sed 's/ *;.*//' >"$file.tmp"
  mv "$file.tmp" "$file"
}

"$uv" lock "$@"
export_list requirements/services.txt --extra services --group dev
export_list requirements/train.txt --no-default-groups --extra train --group train-dev

# The GPU list: the same project, nothing left out.
copy="$(mktemp -d)"
trap 'rm -rf "$copy"' EXIT
sed '/^override-dependencies = \[/,/^\]/d' pyproject.toml >"$copy/pyproject.toml"
cp README.md "$copy/"
here="$PWD"
(cd "$copy" && "$uv" lock "$@" && export_list "$here/requirements/train-gpu.txt" --no-default-groups --extra train --group train-dev)
