#!/bin/sh
# Make a virtual environment: venv.sh PYTHON FOLDER. One that works is kept.
# Debian and Ubuntu ship Python without the part that venv needs: as root this script installs it, else it says how.
set -eu
python=$1
folder=$2

fail() {
    echo "$1" >&2
    exit 1
}

command -v "$python" >/dev/null || fail "No $python here: install Python 3.10 or later, or name one: make PYTHON=PATH"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$python is Python $version, and 3.10 or later is needed; name a later one: make PYTHON=PATH"

# Its programs name the folder that they were made in, so one that was moved or copied does not work.
if grep -qs "^#!$PWD/$folder/bin/" "$folder/bin/pip" && "$folder/bin/python" -m pip --version >/dev/null 2>&1; then
    exit 0
fi

if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    package=python$version-venv
    command -v apt-get >/dev/null || fail "$python lacks the venv module: install it with your package manager"
    [ "$(id -u)" = 0 ] || fail "$python lacks the venv module: apt install $package"
    echo "Installing $package." >&2
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends "$package" >/dev/null
fi
"$python" -m venv --clear "$folder"
