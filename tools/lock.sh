#!/usr/bin/env bash
# Makes the lock files anew from pyproject.toml. Versions already locked stay, as far as they still fit; `lock.sh --upgrade` moves all.
# Needs `uv` (pip install uv) on the PATH or in $UV. Addresses of package indexes stay out: each machine has its own.
set -euo pipefail
cd "$(dirname "$0")/.."
uv="${UV:-uv}"
options=(pip compile --quiet --universal --python-version 3.12 --generate-hashes --no-emit-index-url --no-header --no-annotate "$@" pyproject.toml)

"$uv" "${options[@]}" --extra dev -o requirements/dev.lock
pins="$(mktemp)"
trap 'rm -f "$pins"' EXIT
sed -n 's/ \\$//; /^[a-z]/p' requirements/dev.lock > "$pins"
# one set of versions in all environments, but for what the older jax needs
"$uv" "${options[@]}" --extra build -c "$pins" -o requirements/base.lock
"$uv" "${options[@]}" --extra build --extra gpu -c "$pins" -o requirements/cuda12.lock
sed -i '/^jax==/d; /^jaxlib==/d' "$pins"
"$uv" "${options[@]}" --extra build -c "$pins" requirements/jax011.in -o requirements/jax011.lock
sed '/^jax/d; /^jaxlib/d; /^setuptools==/d' "$pins" > "$pins.gpu"
"$uv" pip compile --quiet --universal --python-version 3.12 --generate-hashes --no-emit-index-url --no-header --no-annotate "$@" \
  -c "$pins.gpu" requirements/gpu-compile.in -o requirements/gpu-compile.lock
rm -f "$pins.gpu"
# apart: the schemas of make k8s-check need pydantic
"$uv" pip compile --quiet --universal --python-version 3.12 --generate-hashes --no-emit-index-url --no-header --no-annotate "$@" \
  requirements/k8s.in -o requirements/k8s.lock
# apart: grafana-client's HTTP library takes the place of urllib3
"$uv" pip compile --quiet --universal --python-version 3.12 --generate-hashes --no-emit-index-url --no-header --no-annotate "$@" \
  requirements/grafana.in -o requirements/grafana.lock
