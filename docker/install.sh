#!/bin/sh
# Puts Fairlane itself into the image's environment, its native kernels compiled; run by the Dockerfile in /app.
set -eu
pip install --no-deps --no-build-isolation --editable .
ls engine/kernels/cpu/*.so >/dev/null || { echo "the native CPU kernels were not built" >&2; exit 1; }
pip uninstall --yes setuptools
# nothing can be written later
"$PIP_PYTHON" -m compileall -q appliance engine migrations
rm -rf ./*.egg-info build docker/install.sh
