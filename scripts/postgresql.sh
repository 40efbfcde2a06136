#!/usr/bin/env bash
# Sees to it that PostgreSQL's server programs are installed: tests of the record start a server of their own with them.
# In: nothing. Out: initdb and postgres under /usr/lib/postgresql or on PATH, else a message and 1. No service is set up.
set -euo pipefail

installed() {
  compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null
}

installed && exit 0
command -v apt-get >/dev/null || {
  echo "tests of the record need PostgreSQL's server programs (initdb, postgres) on PATH" >&2
  exit 1
}
root=()
[ "$(id -u)" = 0 ] || root=(sudo --non-interactive)
# Without this Debian's package makes and starts a database of its own.
"${root[@]}" mkdir -p /etc/postgresql-common
[ -e /etc/postgresql-common/createcluster.conf ] ||
  echo "create_main_cluster = false" | "${root[@]}" tee /etc/postgresql-common/createcluster.conf >/dev/null
"${root[@]}" apt-get install -q -y --no-install-recommends postgresql >&2 || {
  "${root[@]}" apt-get update -q >&2
  "${root[@]}" apt-get install -q -y --no-install-recommends postgresql >&2
}
installed || {
  echo "the package postgresql brought no initdb: install PostgreSQL's server programs" >&2
  exit 1
}
