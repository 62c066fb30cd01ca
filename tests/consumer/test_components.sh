#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Each installed file has one of the components that packages are made of; together they are the whole installation.
# usage: test_components.sh BUILD_DIR
set -eu
build=$1
# shellcheck source=tests/script.sh
. "$(dirname "$0")/../script.sh"

# files FOLDER: what lies in it, sorted.
files() {
    (cd "$1" && find . ! -type d | sort)
}

# install_into FOLDER OPTION…
install_into() {
    folder=$1
    shift
    DESTDIR='' cmake --install "$build" --prefix "$folder" "$@" >"$work/install.log" || fail "$(cat "$work/install.log")"
}

[ ! -e "$build/install_manifest.txt" ] || cp "$build/install_manifest.txt" "$work/before"
install_into "$work/all"
if [ -e "$work/before" ]; then mv "$work/before" "$build/install_manifest.txt"; else rm "$build/install_manifest.txt"; fi
files "$work/all" >"$work/all.txt"
for component in runtime development tool mpi python site; do
    mkdir "$work/$component"
    install_into "$work/$component" --component "$component"
    rm -f "$build/install_manifest_$component.txt"
    files "$work/$component" >"$work/$component.txt"
    cat "$work/$component.txt" >>"$work/parts.txt"
done
sort "$work/parts.txt" | uniq -d >"$work/twice.txt"
[ ! -s "$work/twice.txt" ] || fail "two components have $(cat "$work/twice.txt")"
sort "$work/parts.txt" | diff - "$work/all.txt" || fail "these files have no component that a package takes"

# expect COMPONENT PATTERN…: it has such files.
expect() {
    component=$1
    shift
    for pattern in "$@"; do
        grep -q "$pattern" "$work/$component.txt" || fail "component $component has no $pattern"
    done
}
expect runtime '/libexpar\.so\.[0-9.]*$' '/libexpar-shmem\.so\.[0-9.]*$' '/libexpar-nvshmem\.so\.[0-9.]*$'
expect development '/libexpar\.so$' '/expar/expar\.h$' '/expar\.pc$' '/compat/parts/rma\.h$' '/exparConfig\.cmake$' '/man3/' '/oshcc$'
[ ! -e "$build/bin/expar" ] || expect tool '/bin/expar$' '/man1/expar\.1$' '/model\.safetensors$' '/_expar$' '/oshrun$'
[ ! -e "$build/lib/expar/gda-nic" ] || expect tool '/lib/expar/gda-nic$'
! grep -q '/libexpar\.so$' "$work/runtime.txt" || fail "component runtime has the link for development"
