#!/bin/sh
# Makes sure that there is a redis-server for the tests of the Redis sink. If there is none, Debian as
# root installs one. Without it those tests are skipped, so nothing here is an error (exit code 0).
set -eu
package=redis-server

found() {
    command -v redis-server >/dev/null 2>&1
}

install() {
    [ "$(id -u)" = 0 ] && [ -f /etc/debian_version ] && command -v apt-get >/dev/null 2>&1 || return 1
    echo "millstream: no redis-server found, installing one with apt-get" >&2
    export DEBIAN_FRONTEND=noninteractive
    {
        apt-get -qq update
        apt-get -qq install -y --no-install-recommends "$package"
    } >/dev/null 2>&1 </dev/null
}

found && exit 0
install && found && exit 0
echo "millstream: no redis-server, so the tests of the Redis sink are skipped (package $package)" >&2
exit 0
