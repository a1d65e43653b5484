#!/bin/sh
# Install the system packages that the tests use for real; without root or apt-get say which are missing.
set -eu

# package:command or file that tells whether it is there
needed="gcc:gcc libc6-dev:/usr/include/stdio.h podman:podman runc:runc"

missing=
for pair in $needed; do
    proof=${pair#*:}
    command -v "$proof" >/dev/null || [ -e "$proof" ] || missing="$missing ${pair%%:*}"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing$missing." >&2
    apt-get update -qq
    # The word splitting is meant: one argument a package.
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends $missing >/dev/null
else
    echo "Not installed, so the tests that need them are skipped:$missing" >&2
fi
