#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Tests packages in a fresh Debian, in a chroot that it makes with the mirrors of this machine's apt. It needs root and
# mmdebstrap, and ends with 77 without them. /dev/shm has 64 KB there.
# usage: chroot.sh WORK_DIR deb DEB_DIR  installs the packages in DEB_DIR, runs expar demo and Python, removes them
#        chroot.sh WORK_DIR container    the steps of the Containerfile, from this source
set -euo pipefail
usage() {
    sed -n 's/^# usage: /usage: /p; s/^#        chroot/       chroot/p' "$0" >&2
    exit 2
}
[ $# -ge 2 ] || usage
if [ "$(id -u)" != 0 ] || ! command -v mmdebstrap >/dev/null; then
    echo "chroot: not root, or mmdebstrap is not there (scripts/setup.sh chroot installs it)" >&2
    exit 77
fi
source_root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
work=$(realpath "$1")
what=$2

# The mirrors of this machine's Debian, as lines for sources.list.
mirrors() {
    # shellcheck disable=SC2016 # apt puts the fields in
    apt-get indextargets --format 'deb $(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' |
        sort -u
}

make_base() {
    suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
    [ -e "$work/base.tar" ] || {
        mirrors >"$work/sources.list"
        mmdebstrap --quiet --mode=root --variant=minbase "$suite" "$work/base.part.tar" "$work/sources.list"
        mv "$work/base.part.tar" "$work/base.tar"
    }
}

# fresh NAME: a new root folder.
fresh() {
    make_base
    root=$work/$1
    rm -rf --one-file-system "$root"
    mkdir -p "$root"
    tar -C "$root" -xf "$work/base.tar"
    cp /etc/resolv.conf "$root/etc/resolv.conf"
}

# inside USER COMMAND…: runs it there, in a mount and process namespace that ends with it.
inside() {
    # shellcheck disable=SC2016 # for the inner shell
    unshare --mount --pid --fork --kill-child -- sh -euc '
        root=$1 user=$2
        shift 2
        mount -t proc proc "$root/proc"
        mount -t devpts devpts "$root/dev/pts"
        mount -t tmpfs -o size=64k,mode=1777 tmpfs "$root/dev/shm"
        exec chroot "$root" setpriv --reuid "$user" --regid "$user" --clear-groups \
            env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LC_ALL=C.UTF-8 "$@"
    ' inside "$root" "$@"
}

step() {
    echo "chroot: $1"
}

test_packages() {
    fresh deb
    mkdir "$root/packages"
    cp "$1"/*.deb "$source_root/scripts/container.sh" "$root/packages/"
    step "install"
    inside 0 /packages/container.sh install /packages
    step "demo"
    inside expar /packages/container.sh demo
    step "Python, manual pages, completion"
    inside expar python3 -c 'import expar; print(expar.__version__, expar.library_path())'
    inside expar sh -euc '
        test -e /usr/share/man/man1/expar-demo.1.gz && test -e /usr/share/man/man3/expar_put.3.gz
        test -e /usr/share/bash-completion/completions/expar && test -e /usr/share/zsh/vendor-completions/_expar
        test -e /usr/share/fish/vendor_completions.d/expar.fish && test -e /usr/include/expar/expar.h'
    step "remove"
    inside 0 apt-get -qq -y purge expar libexpar-dev libexpar0.1 python3-expar >/dev/null
    rm -r "$root/packages"
    if find "$root" -xdev \( -name '*expar*' -o -name '*deep_ep*' \) ! -path "$root/home/expar*" \
        ! -path "$root/var/mail/*" ! -path "$root/var/log/*" | grep .; then
        echo "chroot: these files are left after the packages were removed" >&2
        return 1
    fi
    step "the packages install, run and go"
}

test_container() {
    fresh build
    mkdir "$root/src"
    git -C "$source_root" ls-files -z | tar -C "$source_root" --null -T - -cf - | tar -C "$root/src" -xf -
    step "build"
    inside 0 /src/scripts/container.sh build
    mkdir "$work/packages"
    cp "$root"/src/build/deb/*.deb "$root/src/scripts/container.sh" "$work/packages/"
    fresh image
    mv "$work/packages" "$root/packages"
    step "install"
    inside 0 /packages/container.sh install /packages
    step "demo"
    inside expar /packages/container.sh demo
    step "the steps of the Containerfile work"
}

case $what in
    deb)
        [ $# = 3 ] || usage
        test_packages "$3"
        ;;
    container) rm -rf "$work/packages" && test_container ;;
    *) usage ;;
esac
rm -rf --one-file-system "${root:?}"
