#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every #include "…" in src goes to a lower layer, or to the own one, and to a header that its folder shows to others.
# Layers above link use transports by links alone.
# usage: check_layers.sh SRC_DIR
set -eu
cd "$1"

# Each folder with the height of its layer, and its headers that others may include; the rest is private to it. A layer
# calls those of less height; those of equal height stand beside each other and do not know each other. A folder inside
# a layer is one more row of the same height. A header in parentheses is for the folders of its own layer alone.
table='
0 base             base.h dlpack.h interrupt.h knobs.h life.h portable.h shown.h
1 proto            normal.h nodes.h low_latency.h sends.h signals.h reserve.h decisions.h serving.h change.h
1 proto/codec      codec.h (logfmt.h) number.h
1 boot             boot.h ranks.h (registry.h) (bounded.h)
1 boot/launch
1 boot/meet        (meet.h)
1 boot/sockets     (create.h)
1 boot/wire        (wire.h)
1 cuda             cuda.h command.h
2 mem              mem.h device.h fence.h place.h copier.h registry.h
3 net              transport.h
3 net/fabric
3 net/gda          gda.h keys.h queue.h view.h (device.h) (options.h) (space.h)
3 net/gda/devx     (devx.h)
3 net/gda/nic      nic.h (process.h)
3 net/p2p          access.h
3 net/proxy        proxy.h ring.h waits.h
4 shmem            sym.h kinds.h kernel_ways.h rings.h device_heap.h doorbell.h tree.h (pinned_heap.h) (changer.h)
4 shmem/copies     (copies.h)
5 group            group.h members.h tools.h
5 link             link.h
5 link/device      ptx.h bulk.h ring.h gda.h
6 exec             executor.h normal.h step.h event.h low_latency.h far_words.h
6 exec/cpu         create.h
6 exec/cpu/core    carrier.h (calls.h) (delay.h) (rows.h) (encode.h) (workers.h)
6 exec/cpu/normal  (cpu.h) (moves.h) (nodes.h)
6 exec/cpu/low_latency (create.h) (cpu.h) (combine.h) (dispatch.h) (far.h)
6 exec/cpu/low_latency/far (links.h)
6 exec/cpu/nodes   (rails.h)
6 exec/cuda        create.h
6 exec/cuda/core   (gpu.h) (device_state.h) (stamps.h)
6 exec/cuda/normal (normal_gpu.h)
6 exec/cuda/hosted (hosted.h)
6 exec/cuda/low_latency (create.h)
6 exec/cuda/kernels/core (args.h) (moments.h) (device.h) (watch.h) (number.h) (rejection.h)
6 exec/cuda/kernels/normal (args.h)
6 exec/cuda/kernels/hosted (mover_args.h)
6 exec/cuda/kernels/low_latency (ll_args.h)
7 ep
7 ep/call          (call.h)
7 ep/normal        (normal.h)
7 ep/low_latency   (ll.h)
7 pgas             pgas.h (ops.h) (words.h)
7 pgas/team        team.h
7 pgas/device      handles.h
7 pgas/stream      stream.h
- openshmem        (exit.h)
- openshmem/nvshmem
'
# Heights inside ep and exec: a folder includes headers of those below it. Folders of one height do not know each other.
inner='
0 exec/cpu/core
1 exec/cpu/normal
1 exec/cpu/low_latency
2 exec/cpu/low_latency/far
2 exec/cpu/nodes
3 exec/cpu
0 exec/cuda/kernels/core
1 exec/cuda/kernels/normal
1 exec/cuda/kernels/hosted
1 exec/cuda/kernels/low_latency
2 exec/cuda/core
3 exec/cuda/normal
3 exec/cuda/low_latency
4 exec/cuda/hosted
5 exec/cuda
0 ep/call
1 ep/normal
1 ep/low_latency
2 ep
'

# A file that makes an object stands on all its parts.
excepted='exec/cpu/low_latency/create.c'

# Made by the build; of base, and of net.
generated='transport_names.h transports.inc abi_text.h'

find . -name '*.[ch]' -o -name '*.cu' | sed 's|^\./||' | sort | xargs grep -H '^[ \t]*#[ \t]*include[ \t]*"' |
    awk -v table="$table" -v generated="$generated" -v inner="$inner" -v excepted="$excepted" '
    function complain(text) { print from ": " text; failed = 1 }
    function folder_of(path) { return path ~ /\// ? substr(path, 1, match(path, /\/[^\/]*$/) - 1) : "" }
    function layer_of(folder, parts) { split(folder, parts, "/"); return parts[1] }
    function lies_above(a, b) { return height[b] == "-" || height[a] == "-" || height[b] + 0 >= height[a] + 0 }
    BEGIN {
        rows = split(table, row, "\n")
        for (i = 1; i <= rows; i++) {
            words = split(row[i], word, " ")
            if (words < 2) continue
            height[word[2]] = word[1]
            for (w = 3; w <= words; w++) {
                if (word[w] ~ /^\(.*\)$/) inside[word[2] "/" substr(word[w], 2, length(word[w]) - 2)] = 1
                else shown[word[2] "/" word[w]] = 1
            }
        }
        split(generated, word, " ")
        for (w in word) made[word[w]] = 1
        rows = split(inner, row, "\n")
        for (i = 1; i <= rows; i++)
            if (split(row[i], word, " ") == 2) step[word[2]] = word[1]
        split(excepted, word, " ")
        for (w in word) except[word[w]] = 1
    }
    {
        split($0, field, "\"")
        from = substr($0, 1, index($0, ":") - 1)
        to = field[2]
        own = folder_of(from)
        other = folder_of(to)
        seen[own] = 1
        if (!(own in height)) complain("folder " own " is not in the table of tests/layers")
        else if (to in made) { if (layer_of(own) != "base" && layer_of(own) != "net") complain(to " is made for base and net") }
        else if (!(other in height)) complain("\"" to "\" names no folder of src")
        else if (layer_of(own) == "proto" && layer_of(other) != "proto" && to != "base/portable.h") complain(to " is not for proto, which includes base/portable.h alone")
        else if (to == "net/transport.h" && layer_of(own) !~ /^(net|shmem|link)$/) complain(to " is for net, shmem and link: what stands above them uses transports by link/link.h")
        else if (own == other) next
        else if (own in step && other in step && step[other] + 0 >= step[own] + 0 && !(from in except)) complain(to " is of a folder that " own " does not stand on")
        else if (layer_of(own) != layer_of(other) && lies_above(own, other)) complain(to " is of a layer that " layer_of(own) " does not stand on")
        else if (to in shown) next
        else if (!(to in inside)) complain(to " is private to " other)
        else if (layer_of(own) != layer_of(other)) complain(to " is private to " layer_of(other))
    }
    END {
        for (folder in height) if (!(folder in seen)) { from = folder; complain("there is no such folder, or nothing is included in it") }
        exit failed
    }'

# Nor do they post to a transport by way of what another header brings along.
posts='transport_(post|request|site)|TRANSPORT_KIND_|ops->(put|get|atomic|post|settle|drop)\(via'
if find exec ep pgas group -name '*.[ch]' | sort | xargs grep -nE "$posts"; then
    echo "transports are used by link/link.h alone above net, shmem and link"
    exit 1
fi

# The headers of the table exist.
echo "$table" | while read -r _ folder headers; do
    for header in $headers; do
        header=${header#"("}
        header=${header%")"}
        [ -f "$folder/$header" ] || { echo "$folder/$header: is in the table of tests/layers, but not there"; exit 1; }
    done
done

# Requests to other nodes, or for far ranks, go by a table of operations. Their names stand in their folder, and in the
# file that makes them.
asked_by_table() {
    grep -rnow "$1" --include='*.[ch]' exec | grep -v "^$2/\|^$3:\|:ll_far_ops\$" |
        awk -F: -v folder="$2" '{ print $1 ": " $3 " is a name of " folder; failed = 1 } END { exit failed }'
}
asked_by_table 'rail_[a-z0-9_]*' exec/cpu/nodes exec/cpu/create.c
asked_by_table 'll_far_[a-z0-9_]*' exec/cpu/low_latency/far exec/cpu/low_latency/create.c
