#!/bin/bash
# Before the server's first start: a cluster with the user, the password and the database of the environment. Then the command.
set -euo pipefail
[ "$1" = postgres ] || exec "$@"
chmod 0700 "$PGDATA"
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb --username="$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE"
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    pg_ctl --options="-c listen_addresses=''" --wait start
    createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl --mode=fast --wait stop
fi
exec "$@"
