#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: ssh_stand_in.sh 198.18.0.N COMMAND: runs a command on a host of tests/netns/netns.h, as ssh would. The host
# 198.18.9.9 cannot be reached.
number=${1##*.}
[ "$1" != 198.18.9.9 ] || { echo "ssh_stand_in: no route" >&2 && exit 255; }
exec nsenter --net="$(printf '%s' "$EXPAR_TEST_NETNS" | cut -d : -f "$number")" sh -c "$2"
