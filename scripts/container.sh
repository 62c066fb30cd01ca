#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The steps of the Containerfile, on a Debian with nothing but its essential packages. scripts/chroot.sh runs them, too.
# usage: container.sh build           as root: compiles this source and makes its Debian packages, in build/deb
#        container.sh install FOLDER  as root: installs the packages in FOLDER, and makes the user `expar`
#        container.sh demo            as that user: runs the demo, on one node and on two simulated ones
set -euo pipefail
usage() {
    sed -n 's/^# usage: /usage: /p; s/^#        container/       container/p' "$0" >&2
    exit 2
}

install_packages() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update
    apt-get -qq -y install --no-install-recommends "$@" >/dev/null
}

case ${1:-} in
    build)
        install_packages make
        make -C "$(dirname "$0")/.." deb
        ;;
    install)
        [ $# = 2 ] || usage
        packages=("$(realpath "$2")"/*.deb)
        # libfabric connects nodes; the packages recommend it.
        install_packages "${packages[@]}" libfabric1
        rm -rf /var/lib/apt/lists/*
        id expar >/dev/null 2>&1 || useradd --create-home --shell /bin/bash expar
        ;;
    demo)
        [ "$(id -u)" != 0 ] || { echo "container: run the demo as a user without privileges" >&2 && exit 1; }
        expar --version
        expar demo -n 4 --bytes 24
        expar demo -n 4 --nodes 2 --bytes 24
        ;;
    *) usage ;;
esac
