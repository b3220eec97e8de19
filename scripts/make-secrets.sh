#!/bin/sh
# Makes what docker-compose.yml keeps secret: `make-secrets.sh DIRECTORY`, with a subdirectory for each reader: `postgres`,
# `strandline` and `grafana`. Writes only what is not there yet, so it may run at every start. Prints no secret.
set -eu
umask 077
cd "$1"

# 192 bits, as hexadecimal digits: they need no escape in any file or URL.
new_secret() {
    secret=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
    [ ${#secret} -eq 48 ] || { echo "make-secrets: /dev/urandom gave too little; nothing was written" >&2; exit 1; }
    printf '%s' "$secret"
}

# Complete under another name first: a kill leaves no half of a secret behind.
put() { # FILE OWNER
    cat > "$1.new"
    chmod 400 "$1.new"
    if [ "$(id -u)" -eq 0 ]; then chown "$2" "$1.new"; fi
    mv "$1.new" "$1"
    echo "made $1"
}

make_password() { # FILE OWNER
    if [ ! -s "$1" ]; then
        secret=$(new_secret)
        printf '%s' "$secret" | put "$1" "$2"
    fi
}

# The server reads its password as user 999 of its image.
make_password postgres/password 999:999
# The first password of Grafana's user admin, who may change it there.
make_password grafana/password 472:0
# PostgreSQL's client reads it from a file of this form, which nobody else may read. User 10001 is ours.
line="postgres:5432:strandline:strandline:$(cat postgres/password)"
if [ ! -s strandline/pgpass ] || [ "$(cat strandline/pgpass)" != "$line" ]; then
    printf '%s\n' "$line" | put strandline/pgpass 10001:10001
fi
