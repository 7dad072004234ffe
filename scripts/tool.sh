#!/bin/sh
# Makes sure that a program the tests drive is there: tool.sh PACKAGE TESTS COMMAND...
# If none of the commands is found, Debian as root installs the package. Without it those tests are
# skipped, so nothing here is an error (exit code 0).
set -eu
package=$1
tests=$2
shift 2

found() {
    for name in "$@"; do
        if command -v "$name" >/dev/null 2>&1; then return 0; fi
    done
    return 1
}

install() {
    [ "$(id -u)" = 0 ] && [ -f /etc/debian_version ] && command -v apt-get >/dev/null 2>&1 || return 1
    echo "millstream: no $package found, installing one with apt-get" >&2
    export DEBIAN_FRONTEND=noninteractive
    {
        timeout 120 apt-get -qq update
        timeout 300 apt-get -qq install -y --no-install-recommends "$package"
    } >/dev/null 2>&1 </dev/null
}

found "$@" && exit 0
install && found "$@" && exit 0
echo "millstream: no $package, so the tests of $tests are skipped" >&2
exit 0
