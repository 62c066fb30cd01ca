#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs `expar bench` on hosts that are network namespaces of this machine. Each has its share of the cores and a virtual
# cable to a bridge. A cable carries a given rate each way, or as much as the cores copy. With --mpi in the arguments
# MPI runs on the same hosts: by shared memory inside a host, by TCP between hosts.
# usage: bench_nodes.sh BUILD_DIR HOSTS RATE ARGUMENTS…      RATE: as tc names it (1gbit), or none
# example: bench_nodes.sh build/release 2 1gbit dispatch combine -n 4 --tokens 256 --mpi
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

# Hosts that shared cores would wait for each other's ranks, where real ones wait for the network. Each host has at
# least one core, so on machines with few cores they do share.
share_of() { # HOST
    local host=$1 cores
    read -ra cores <<<"$BENCH_NODES_CORES"
    local count=$((${#cores[@]} / BENCH_NODES_COUNT))
    ((count > 0)) || { count=1 && host=$((host % ${#cores[@]})); }
    local IFS=,
    echo "${cores[*]:host * count:count}"
}

inside() { # HOST COMMAND…
    local host=$1
    shift
    nsenter --net --uts --target "$(cut -d' ' -f$((host + 1)) <<<"$BENCH_NODES_HOSTS")" -- \
        taskset -c "$(share_of "$host")" "$@"
}

case ${1:-} in
--rank) # COMMAND…: a rank that `expar run` has started goes to its host
    shift
    inside $((EXPAR_RANK * BENCH_NODES_COUNT / EXPAR_SIZE)) "$@"
    exit
    ;;
host[0-9]*) # COMMAND: mpirun starts its part of another host
    host=${1#host}
    shift
    inside "$host" sh -c "$*"
    exit
    ;;
esac

refuse() {
    echo "bench_nodes.sh: $1" >&2
    echo "usage: bench_nodes.sh BUILD_DIR HOSTS RATE ARGUMENTS…      RATE: as tc names it (1gbit), or none" >&2
    exit 64
}

[ $# -ge 4 ] || refuse "$# arguments: a build's folder, hosts, a rate, and what \`expar bench\` takes are expected"
[ -x "$1/bin/expar" ] || refuse "BUILD_DIR '$1': a folder with bin/expar in it is expected"
[[ $2 =~ ^[1-9][0-9]?$ ]] || refuse "HOSTS '$2': a number from 1 to 99 is expected"
[[ $3 =~ ^([0-9.]+[kmgt]?bit|none)$ ]] || refuse "RATE '$3': none, or a rate as 1gbit is expected"
script=$(realpath "$0") build=$(realpath "$1") hosts=$2 rate=$3
shift 3
ranks=
for ((i = 1; i < $#; i++)); do
    [ "${!i}" != -n ] || { j=$((i + 1)) && ranks=${!j}; }
done
if ! [[ $ranks =~ ^[1-9][0-9]{0,3}$ ]] || ((ranks % hosts)); then
    refuse "-n '$ranks': among the arguments of the benchmark a multiple of $hosts hosts is expected"
fi

# Namespaces end with the last of their processes: nothing is left behind.
if [ -z "${BENCH_NODES_COUNT:-}" ]; then
    as_root=()
    [ "$(id -u)" = 0 ] || as_root=(--map-root-user)
    BENCH_NODES_COUNT=$hosts exec unshare "${as_root[@]}" --net --mount "$script" "$build" "$hosts" "$rate" "$@"
fi

BENCH_NODES_CORES=
for range in $(sed -n 's/^Cpus_allowed_list:\t//p' /proc/self/status | tr , ' '); do
    BENCH_NODES_CORES+="$(seq -s ' ' "${range%-*}" "${range#*-}") "
done
export BENCH_NODES_CORES
# A host is a process that keeps its namespaces alive. Both directions are limited: what it sends, and what the bridge
# sends to it.
BENCH_NODES_HOSTS=
job=
trap 'kill $job $BENCH_NODES_HOSTS' EXIT
trap 'exit 143' TERM INT
# Runs on the first host, in the background, so that a signal is handled at once.
run() {
    nsenter --net --uts --target "${BENCH_NODES_HOSTS%% *}" -- taskset -c "$(share_of 0)" "$@" &
    job=$!
    local code=0
    wait "$job" || code=$?
    job=
    exit "$code"
}
ip link add bridge type bridge
ip link set bridge up
names=$(mktemp)
echo "127.0.0.1 localhost" >"$names"
for ((host = 0; host < hosts; host++)); do
    unshare --net --uts sleep infinity &
    holder=$!
    until [ "$(readlink /proc/$holder/ns/uts)" != "$(readlink /proc/self/ns/uts)" ]; do sleep 0.01; done
    BENCH_NODES_HOSTS="${BENCH_NODES_HOSTS:+$BENCH_NODES_HOSTS }$holder"
    ip link add "cable$host" type veth peer name net0 netns "$holder"
    ip link set "cable$host" master bridge up
    inside "$host" sh -c "hostname host$host && ip addr add 198.18.0.$((host + 1))/24 dev net0 &&
        ip link set net0 up && ip link set lo up"
    echo "198.18.0.$((host + 1)) host$host" >>"$names"
    [ "$rate" != none ] || continue
    inside "$host" tc qdisc add dev net0 root tbf rate "$rate" burst 256kb latency 100ms
    tc qdisc add dev "cable$host" root tbf rate "$rate" burst 256kb latency 100ms
done
mount --bind "$names" /etc/hosts
rm "$names"

export BENCH_NODES_HOSTS EXPAR_BOOTSTRAP_INTERFACE=net0
if [[ " $* " != *" --mpi "* ]]; then
    run "$build/bin/expar" run --no-prefix -n "$ranks" -- "$script" --rank "$build/bin/expar" bench "$@"
fi
places=
for ((host = 0; host < hosts; host++)); do places+=${places:+,}host$host:$((ranks / hosts)); done
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
run mpirun -n "$ranks" --host "$places" --bind-to none --mca plm_rsh_agent "$script" \
    --mca oob_tcp_if_include net0 --mca btl self,vader,tcp --mca btl_tcp_if_include net0 --mca pml ob1 \
    -x BENCH_NODES_HOSTS -x BENCH_NODES_COUNT -x EXPAR_BOOTSTRAP_INTERFACE "$build/bin/expar-bench-mpi" "$@"
