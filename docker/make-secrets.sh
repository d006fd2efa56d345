#!/bin/sh
# Makes the secrets of compose.yaml in docker/secrets (or $SECRETS_DIR): random, once. What is there stays, so running it again is safe.
#   make-secrets.sh               for SQLite
#   make-secrets.sh --postgres    the appliance uses the PostgreSQL of profile pg from its next start on
# The folder is yours alone; the files in it are readable, because a container's user is another one than you.
# The first time it also begins docker/.env with a project name: Compose's own choice, the folder's name, is `docker` for many projects.
set -eu
here="$(dirname "$0")"
folder="${SECRETS_DIR:-$here/secrets}"
umask 077
mkdir -p "$folder"
chmod 700 "$folder"

if [ "$folder" = "$here/secrets" ] && [ ! -e "$folder/api_key" ] && [ ! -e "$here/.env" ]; then
  echo COMPOSE_PROJECT_NAME=fairlane >"$here/.env"
fi

keep() { # NAME: standard input becomes that secret, unless it is there already
  if [ -d "$folder/$1" ]; then rmdir "$folder/$1"; fi # Docker makes a folder where the file that it is to mount is missing
  if [ -s "$folder/$1" ]; then return; fi
  rm -f "$folder/$1"
  cat >"$folder/$1"
  chmod 444 "$folder/$1"
}

random() { # hexadecimal digits, 160 bits
  od -An -N20 -tx1 /dev/urandom | tr -d ' \n'
}

for name in api_key admin_token key_pepper metrics_key grafana_password; do random | keep "$name"; done
for name in database_url hf_token; do : | keep "$name"; done # empty is a setting left out
if [ "${1:-}" = --postgres ]; then
  random | keep postgres_password
  printf 'postgresql://fairlane:%s@postgres:5432/fairlane' "$(cat "$folder/postgres_password")" | keep database_url
fi
echo "secrets are in $folder: api_key is the first key, admin_token administers, grafana_password is admin's"
