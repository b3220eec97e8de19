#!/bin/bash
# Hands every variable of the form `word.word` to the server as a setting, as the official image's entry script does.
set -euo pipefail
umask 0002
settings=()
while IFS='=' read -r name value; do
    if [[ $name =~ ^[a-z0-9_]+\.[a-z0-9_]+ && -n $value ]]; then settings+=("-E$name=$value"); fi
done < <(env)
exec /usr/share/elasticsearch/bin/elasticsearch "${settings[@]}"
