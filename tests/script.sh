# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# Common start of tests that are scripts: a folder that goes with them, and how they fail.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "$(basename "$0" .sh): $1" >&2
    exit 1
}
