#!/bin/sh
# Makes .venv with the interpreter named in $1 (python3), unless a usable one is there already.
set -eu
python=${1:-python3}

recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
is_root_on_debian() {
    [ "$(id -u)" = 0 ] && [ -f /etc/debian_version ] && command -v apt-get >/dev/null 2>&1
}
fail() {
    echo "millstream: $1" >&2
    exit 2
}

if recent .venv/bin/python && .venv/bin/python -m pip --version >/dev/null 2>&1; then exit 0; fi
command -v "$python" >/dev/null 2>&1 || fail "$python not found: install Python >= 3.11, or name one with make PYTHON=..."
recent "$python" || fail "Python >= 3.11 is needed, $python is $("$python" -V 2>&1): name a newer one with make PYTHON=..."
if "$python" -m venv --clear .venv >/dev/null 2>&1; then exit 0; fi

# Debian keeps ensurepip, which venv needs, in a package of its own.
is_root_on_debian || fail "$python -m venv .venv failed: on Debian and Ubuntu install python3-venv"
minor=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
export DEBIAN_FRONTEND=noninteractive
{
    apt-get -qq update
    apt-get -qq install -y --no-install-recommends python3-venv ||
        apt-get -qq install -y --no-install-recommends "python$minor-venv"
} >&2 </dev/null || fail "could not install python3-venv with apt-get"
"$python" -m venv --clear .venv || fail "$python -m venv .venv failed"
