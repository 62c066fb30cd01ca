#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The layers of src include only what they may, and the check would see it if they did not.
# usage: test_layers.sh SRC_DIR
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/script.sh
. "$(dirname "$0")/../script.sh"

src=$1

"$here/check_layers.sh" "$src" || fail "src does not keep to its layers"

# One copy has all wrong includes, because the check lists every one of them.
cp -r "$src" "$work/src"
: >"$work/expected"

# plant FILE HEADER SENTENCE: the file includes the header, and the check must say so.
plant() {
    mkdir -p "$(dirname "$work/src/$1")"
    echo "#include \"$2\"" >>"$work/src/$1"
    echo "$1: $3" >>"$work/expected"
}

# A layer above: of the one below, of one far below, and of a folder inside a layer.
plant shmem/heap.c group/group.h 'group/group.h is of a layer that shmem does not stand on'
plant base/log.c ep/call/call.h 'ep/call/call.h is of a layer that base does not stand on'
plant net/fabric/wait.c shmem/sym.h 'shmem/sym.h is of a layer that net does not stand on'
# Headers that kernels compile, too, see no more of base than kernels do.
plant proto/serving.h base/base.h 'base/base.h is not for proto, which includes base/portable.h alone'
# Layers that stand beside each other.
plant pgas/rma.c net/transport.h 'net/transport.h is for net, shmem and link: what stands above them uses transports by link/link.h'
plant group/group.c link/link.h 'link/link.h is of a layer that group does not stand on'
plant ep/call/call.c pgas/pgas.h 'pgas/pgas.h is of a layer that ep does not stand on'
plant pgas/wait.c ep/call/call.h 'ep/call/call.h is of a layer that pgas does not stand on'
plant boot/meet/mesh.c cuda/cuda.h 'cuda/cuda.h is of a layer that boot does not stand on'
# OpenSHMEM's names stand on the public interface alone, and nobody on them.
plant openshmem/rma.c base/base.h 'base/base.h is of a layer that openshmem does not stand on'
plant pgas/rma.c openshmem/shm.h 'openshmem/shm.h is of a layer that pgas does not stand on'
# A private header of a folder, from a layer above and from a folder of the same layer.
plant group/group.c shmem/parts.h 'shmem/parts.h is private to shmem'
plant pgas/wait.c pgas/team/collective.h 'pgas/team/collective.h is private to pgas/team'
plant pgas/team/fan.c pgas/memory.h 'pgas/memory.h is private to pgas'
plant exec/cuda/normal/rows.c exec/cpu/core/encode_log.h 'exec/cpu/core/encode_log.h is private to exec/cpu/core'
# Heights inside ep and exec.
plant ep/call/vote.c ep/normal/normal.h 'ep/normal/normal.h is of a folder that ep/call does not stand on'
plant ep/low_latency/mask.c ep/normal/normal.h 'ep/normal/normal.h is of a folder that ep/low_latency does not stand on'
plant exec/cpu/core/copy.c exec/cpu/normal/cpu.h 'exec/cpu/normal/cpu.h is of a folder that exec/cpu/core does not stand on'
plant exec/cpu/low_latency/plan.c exec/cpu/normal/cpu.h 'exec/cpu/normal/cpu.h is of a folder that exec/cpu/low_latency does not stand on'
plant exec/cpu/low_latency/wait.c exec/cpu/low_latency/far/links.h 'exec/cpu/low_latency/far/links.h is of a folder that exec/cpu/low_latency does not stand on'
plant exec/cpu/normal/layout.c exec/cpu/nodes/rails.h 'exec/cpu/nodes/rails.h is of a folder that exec/cpu/normal does not stand on'
plant shmem/barrier.c net/proxy/parts.h 'net/proxy/parts.h is private to net/proxy'
plant boot/join.c boot/meet/mesh.h 'boot/meet/mesh.h is private to boot/meet'
plant boot/sockets/ask.c boot/place.h 'boot/place.h is private to boot'
# Headers that folders of a layer show to each other alone.
plant group/group.c boot/wire/wire.h 'boot/wire/wire.h is private to boot'
plant shmem/silence.c boot/registry.h 'boot/registry.h is private to boot'
# Ways round.
plant shmem/heap.c ../group/group.h '"../group/group.h" names no folder of src'
plant shmem/heap.c parts.h '"parts.h" names no folder of src'
plant extra/new.c base/base.h 'folder extra is not in the table of tests/layers'

if "$here/check_layers.sh" "$work/src" >"$work/found"; then fail "no fault is seen"; fi
sort "$work/expected" >"$work/sorted"
sort "$work/found" | diff "$work/sorted" - || fail "expected the lines with <, found those with >"

# Tables of operations. The check looks for their names last, and ends with the first that it finds.

# word FILE LINE SENTENCE: with the line in the file, the check fails and says so.
word() {
    rm -rf "$work/src"
    cp -r "$src" "$work/src"
    echo "$2" >>"$work/src/$1"
    if "$here/check_layers.sh" "$work/src" >"$work/found"; then fail "not seen: $1 says $2"; fi
    grep -qxF "$1: $3" "$work/found" || fail "expected '$1: $3', found: $(cat "$work/found")"
}
word exec/cpu/normal/mailbox.c 'void rail_relay(void);' 'rail_relay is a name of exec/cpu/nodes'
word exec/cpu/low_latency/headers.c 'void f(void) { ll_far_flush(0); }' 'll_far_flush is a name of exec/cpu/low_latency/far'
