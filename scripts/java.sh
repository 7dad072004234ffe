#!/bin/sh
# Prints the home of a Java >= 17, the oldest Spark 4 runs on: JAVA_HOME, then PATH, then /usr/lib/jvm.
# If there is none, Debian as root installs one; anybody else is told what to install (exit code 2).
set -eu
oldest=17

# The launcher itself is asked, since a `java` on the PATH is often a link or a shim.
home_if_usable() {
    settings=$("$1" -XshowSettings:properties -version 2>&1 </dev/null) || return 1
    version=$(printf '%s\n' "$settings" | sed -n 's/^ *java\.specification\.version = //p')
    home=$(printf '%s\n' "$settings" | sed -n 's/^ *java\.home = //p')
    case $version in '' | *[!0-9]*) return 1 ;; esac # "1.8" is not a number: too old
    [ "$version" -ge "$oldest" ] && [ -n "$home" ] && printf '%s\n' "$home"
}

find_java() {
    if [ -n "${JAVA_HOME:-}" ] && home_if_usable "$JAVA_HOME/bin/java"; then return 0; fi
    if command -v java >/dev/null 2>&1 && home_if_usable java; then return 0; fi
    for launcher in /usr/lib/jvm/*/bin/java; do
        if [ -x "$launcher" ] && home_if_usable "$launcher"; then return 0; fi
    done
    return 1
}

install_java() {
    [ "$(id -u)" = 0 ] && [ -f /etc/debian_version ] && command -v apt-get >/dev/null 2>&1 || return 1
    echo "millstream: no Java >= $oldest found, installing one with apt-get" >&2
    export DEBIAN_FRONTEND=noninteractive
    {
        apt-get -qq update
        apt-get -qq install -y --no-install-recommends openjdk-17-jre-headless ||
            apt-get -qq install -y --no-install-recommends default-jre-headless
    } >&2 </dev/null
}

find_java && exit 0
install_java && find_java && exit 0
echo "millstream: Java >= $oldest is needed: install openjdk-17-jre-headless (or any newer JRE), or point JAVA_HOME at one" >&2
exit 2
