#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The layers of src include only what they may, and the check would see it if they did not.
# usage: test_layers.sh SRC_DIR
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/script.sh
. "$(dirname "$0")/../script.sh"

"$here/check_layers.sh" "$1" || fail "src does not keep to its layers"

# plant FILE HEADER SENTENCE: with an include of the header in the file, the check fails and says so.
plant() {
    rm -rf "$work/src"
    cp -r "$1" "$work/src"
    mkdir -p "$(dirname "$work/src/$2")"
    echo "#include \"$3\"" >>"$work/src/$2"
    if "$here/check_layers.sh" "$work/src" >"$work/found"; then fail "not seen: $2 includes $3"; fi
    grep -qxF "$2: $4" "$work/found" || fail "expected '$2: $4', found: $(cat "$work/found")"
}

# A layer above: of the one below, of one far below, and of a folder inside a layer.
plant "$1" shmem/heap.c group/group.h 'group/group.h is of a layer that shmem does not stand on'
plant "$1" base/log.c ep/call/call.h 'ep/call/call.h is of a layer that base does not stand on'
plant "$1" net/fabric/wait.c shmem/sym.h 'shmem/sym.h is of a layer that net does not stand on'
# Headers that kernels compile, too, see no more of base than kernels do.
plant "$1" proto/serving.h base/base.h 'base/base.h is not for proto, which includes base/portable.h alone'
# Layers that stand beside each other.
plant "$1" pgas/rma.c net/transport.h 'net/transport.h is for net, shmem and link: what stands above them uses transports by link/link.h'
plant "$1" group/group.c link/link.h 'link/link.h is of a layer that group does not stand on'
plant "$1" ep/call/call.c pgas/pgas.h 'pgas/pgas.h is of a layer that ep does not stand on'
plant "$1" pgas/wait.c ep/call/call.h 'ep/call/call.h is of a layer that pgas does not stand on'
plant "$1" boot/meet/mesh.c cuda/cuda.h 'cuda/cuda.h is of a layer that boot does not stand on'
# OpenSHMEM's names stand on the public interface alone, and nobody on them.
plant "$1" openshmem/rma.c base/base.h 'base/base.h is of a layer that openshmem does not stand on'
plant "$1" pgas/rma.c openshmem/shm.h 'openshmem/shm.h is of a layer that pgas does not stand on'
# A private header of a folder, from a layer above and from a folder of the same layer.
plant "$1" group/group.c shmem/parts.h 'shmem/parts.h is private to shmem'
plant "$1" pgas/wait.c pgas/team/collective.h 'pgas/team/collective.h is private to pgas/team'
plant "$1" pgas/team/fan.c pgas/ops.h 'pgas/ops.h is private to pgas'
plant "$1" exec/cuda/normal/rows.c exec/cpu/core/encode_log.h 'exec/cpu/core/encode_log.h is private to exec/cpu/core'
# Heights inside ep and exec.
plant "$1" ep/call/vote.c ep/normal/normal.h 'ep/normal/normal.h is of a folder that ep/call does not stand on'
plant "$1" ep/low_latency/mask.c ep/normal/normal.h 'ep/normal/normal.h is of a folder that ep/low_latency does not stand on'
plant "$1" exec/cpu/core/copy.c exec/cpu/normal/cpu.h 'exec/cpu/normal/cpu.h is of a folder that exec/cpu/core does not stand on'
plant "$1" exec/cpu/low_latency/plan.c exec/cpu/normal/cpu.h 'exec/cpu/normal/cpu.h is of a folder that exec/cpu/low_latency does not stand on'
plant "$1" exec/cpu/low_latency/wait.c exec/cpu/low_latency/far/links.h 'exec/cpu/low_latency/far/links.h is of a folder that exec/cpu/low_latency does not stand on'
plant "$1" exec/cpu/normal/layout.c exec/cpu/nodes/rails.h 'exec/cpu/nodes/rails.h is of a folder that exec/cpu/normal does not stand on'
plant "$1" shmem/barrier.c net/proxy/parts.h 'net/proxy/parts.h is private to net/proxy'
plant "$1" boot/join.c boot/meet/mesh.h 'boot/meet/mesh.h is private to boot/meet'
plant "$1" boot/sockets/ask.c boot/place.h 'boot/place.h is private to boot'
# Headers that folders of a layer show to each other alone.
plant "$1" group/group.c boot/wire/wire.h 'boot/wire/wire.h is private to boot'
plant "$1" shmem/silence.c boot/registry.h 'boot/registry.h is private to boot'
# Tables of operations, and ways round them.
word() {
    rm -rf "$work/src"
    cp -r "$1" "$work/src"
    echo "$3" >>"$work/src/$2"
    if "$here/check_layers.sh" "$work/src" >"$work/found"; then fail "not seen: $2 says $3"; fi
    grep -qxF "$2: $4" "$work/found" || fail "expected '$2: $4', found: $(cat "$work/found")"
}
word "$1" exec/cpu/normal/mailbox.c 'void rail_relay(void);' 'rail_relay is a name of exec/cpu/nodes'
word "$1" exec/cpu/low_latency/headers.c 'void f(void) { ll_far_flush(0); }' 'll_far_flush is a name of exec/cpu/low_latency/far'
# Ways round.
plant "$1" shmem/heap.c ../group/group.h '"../group/group.h" names no folder of src'
plant "$1" shmem/heap.c parts.h '"parts.h" names no folder of src'
plant "$1" extra/new.c base/base.h 'folder extra is not in the table of tests/layers'
