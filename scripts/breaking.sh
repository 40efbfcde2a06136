#!/usr/bin/env bash
# Compares the contract with the one on the main branch before this commit: what readers of stored events and old clients
# rely on may not change (buf's WIRE_JSON). Skipped, with a word, where git or an earlier contract is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! git rev-parse -q --verify HEAD >/dev/null 2>&1; then
  echo "breaking: skipped, this is not a git checkout"
  exit 0
fi
base="${BASE:-}"
if [ -z "$base" ]; then
  head="$(git rev-parse HEAD)"
  for branch in origin/main main; do
    if [ "$(git rev-parse -q --verify "$branch^{commit}" 2>/dev/null || true)" != "$head" ] && git rev-parse -q --verify "$branch^{commit}" >/dev/null 2>&1; then
      base="$branch"
      break
    fi
  done
  base="${base:-HEAD~1}"
fi
if ! git cat-file -e "$base:proto/whippletree/v1" 2>/dev/null; then
  echo "breaking: skipped, $base has no contract"
  exit 0
fi
old="$(mktemp -d)"
trap 'rm -rf "$old"' EXIT
git archive "$base" buf.yaml proto third_party | tar -x -C "$old"
.venv/bin/buf breaking --against "$old"
