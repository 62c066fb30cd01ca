#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Calls of ep name no device and branch on none: the executor is chosen when the buffer is made. Files that check
# arguments may name devices (check.c, shape.c), since tensors lie on them.
# usage: check_calls.sh SRC_DIR
set -eu
cd "$1/ep"
calls=$(find . -name '*.[ch]' | sed 's|^\./||' | sort |
    grep -E '/(call|vote|rejection|teardown|unread|issuer|dispatch|combine|output|handle|hook|layout|lay_out|mask|buffer|times|route|plan|prologue|request|requirements)[a-z_]*[.]')
[ "$(echo "$calls" | wc -l)" -ge 24 ] || { echo "ep: its files have other names than tests/layers knows"; exit 1; }
# shellcheck disable=SC2086 # words on purpose
if grep -nEi 'cuda|gpu|EXPAR_CPU *[)?:;,]|exec/cpu' $calls /dev/null | grep -v '^normal/layout.c:.*const expar_device cpu\|/buffer.c:.*device.type : EXPAR_CPU'; then
    echo "ep: a call names a device"
    exit 1
fi
