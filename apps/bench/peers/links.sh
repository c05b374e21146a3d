#!/usr/bin/env bash
# Measures, in one run, how long a message takes to hosts whose links are slower than they are: by Squall over TCP,
# beside the bound that the links set, and by MPI_Bcast of the installed MPI libraries.
#
# The hosts are network namespaces (tests/hosts/hosts). The rounds are interleaved, so that a change of the machine's
# speed affects all figures; each figure is the median over the rounds. Needs root, iproute2, iperf3, a C compiler, and
# what MPI takes (Debian: gcc, openmpi-bin, libopenmpi-dev, mpich, libmpich-dev); some four minutes a round.
set -euo pipefail
cd "$(dirname "$0")/../../.."

usage() {
    cat <<'END'
usage: apps/bench/peers/links.sh [--tsv]

  --tsv    lines of id, value, unit, least, most, reference, ratio, target, verdict, tab-separated; # begins a comment

Rows, for 8 hosts unless the name ends in another number:
  goodput        what one TCP connection carries over a link (iperf3)
  goodput.both   the same while another one uses the other direction: the lesser of the two
  link           the message's size / goodput: what it takes one link
  bound          link x (1 + (l - 1)/k), for 2^l hosts and k blocks: what the binomial pipeline takes at least
  pipeline       squall-bench bulk --algorithm pipeline; beside bound
  sequential     the root sends to one after the other; beside link
  slow.A-B       pipeline, when the path between hosts A and B, neighbours in the pipeline, has half the rate
  slow           beside it: pipeline x (s + ceil(s/l)(2 - 1))/s, with s = k + l - 1 (docs/src/internals/rdmc.md)
  openmpi, mpich apps/bench/peers/bulk/mpi_bcast.c, the libraries' own choice of algorithm; beside pipeline
  pipeline.16    beside pipeline

  ratio          value / reference
  target         what the ratio shall be; the verdict is met or missed, if the run has what it takes

Environment:
  RATE=200               the rate of each link, in each direction, in Mbit/s
  SIZE=64                the message's size in MiB
  ROUNDS=3               how many rounds
  QUICK=1                one round of 4 MiB: to see that it works, not to measure
  ONLY="goodput squall"  which parts: goodput squall sequential slow more openmpi mpich
  SKIP_BUILD=1           take the squall-bench that is there
END
}

# What is aimed at.
targets() {
    cat <<'END'
pipeline     ratio <= 1.08
sequential   ratio >= 6.5
slow.1-2     ratio <= 1
slow.7-8     ratio <= 1
openmpi      ratio >= 1
mpich        ratio >= 1
pipeline.16  ratio <= 1.1
END
}

reference_of() {
    case $1 in
        pipeline) echo bound ;;
        sequential) echo link ;;
        slow.*) echo slow ;;
        openmpi | mpich | pipeline.*) echo pipeline ;;
    esac
}

# shellcheck source=apps/bench/peers/figures.sh
. apps/bench/peers/figures.sh
take_arguments "$@"

rate=${RATE:-200}
if [ -n "${QUICK:-}" ]; then
    rounds=${ROUNDS:-1} size=${SIZE:-4}
else
    rounds=${ROUNDS:-3} size=${SIZE:-64}
fi
parts=" ${ONLY:-goodput squall sequential slow more openmpi mpich} "

say() { printf '%s\n' "links: $*" >&2; }
fail() { say "$@" && exit 1; }
wanted() { [[ $parts == *" $1 "* ]]; }

# needs PROGRAM PACKAGE...
needs() { command -v "$1" >/dev/null || missing+=("${@:2}"); }
missing=()
needs ip iproute2 && needs iperf3 iperf3
if wanted openmpi; then needs mpicc.openmpi gcc libopenmpi-dev && needs mpirun.openmpi openmpi-bin; fi
if wanted mpich; then needs mpicc.mpich gcc libmpich-dev && needs mpirun.mpich mpich; fi
((${#missing[@]} == 0)) ||
    fail "these Debian packages are missing: ${missing[*]} (or leave parts out: ONLY=\"goodput squall\")"
((EUID == 0)) || fail "network namespaces take root: run this as root, or with sudo"

if [ -z "${SKIP_BUILD:-}" ] && [[ $parts =~ squall|sequential|slow|more ]]; then
    cargo build --release --locked -p squall-bench --bins >&2
fi
squall=${CARGO_TARGET_DIR:-target}/release/squall-bench
export SQUALL_HOSTS=links
hosts=$PWD/tests/hosts/hosts
scratch=$(mktemp -d)
"$hosts" up 16 --rate "${rate}mbit"
trap '"$hosts" down; rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

for library in openmpi mpich; do
    if wanted "$library"; then "mpicc.$library" -O2 -DROUNDS=1 -o "$scratch/$library" apps/bench/peers/bulk/mpi_bcast.c; fi
done

of() { awk "BEGIN { printf \"%.9g\", $1 }"; }

# --- parts

goodput() {
    local goodput
    goodput=$(tests/hosts/goodput 1 2 4)
    add goodput "$goodput" Mbit/s
    add goodput.both "$(tests/hosts/goodput --both 1 2 4 | sort -n | head -n 1)" Mbit/s
    link=$(of "$size * 2^20 * 8 / ($goodput * 1e6)")
    add link "$link" s
}

# bulk ID NODES ALGORITHM ITERATIONS: leaves the time in `seconds`, and the number of blocks in `blocks`.
bulk() {
    "$squall" bulk --fabric tcp --nodes "$2" --algorithm "$3" --iterations "$4" --warm-up 1 --size "${size}MiB" --json \
        --wrap "$hosts run {host}" --addresses "host{host}" --link-rate $((rate * 125000)) |
        grep '"bench":"bulk"' >"$scratch/json" || fail "squall-bench bulk --nodes $2 --algorithm $3 gave no figure"
    seconds=$(field seconds_median <"$scratch/json")
    blocks=$(((size << 20) / $(field block_bytes <"$scratch/json")))
    add "$1" "$seconds" s
}

# Of 2^3 hosts.
pipeline() {
    bulk pipeline 8 pipeline 3
    if [ -n "${link:-}" ]; then add bound "$(of "$link * (1 + 2 / $blocks)")" s; fi
    if wanted slow; then
        local steps=$((blocks + 2))
        add slow "$(of "$seconds * ($steps + $(((steps + 2) / 3))) / $steps")" s
    fi
}

# slow A B
slow() {
    "$hosts" rate "$1" "$2" $((rate / 2))mbit
    bulk "slow.$1-$2" 8 pipeline 3
    "$hosts" rate "$1" "$2" unlimited
}

# mpi LIBRARY COMMAND...: of 8 hosts, started at the first. MPICH's MPI_Finalize at times never ends, so the figure is
# enough.
mpi() {
    local library=$1 process
    shift
    : >"$scratch/json"
    "$hosts" run 1 "$@" -np 8 "$scratch/$library" $((size << 20)) 2>"$scratch/errors" >"$scratch/json" &
    process=$!
    while [ ! -s "$scratch/json" ] && kill -0 "$process" 2>/dev/null; do sleep 0.2; done
    sleep 1
    kill "$process" 2>/dev/null || true
    wait "$process" || true
    [ -s "$scratch/json" ] || fail "$library said: $(cat "$scratch/errors")"
    add "$library" "$(field seconds_median <"$scratch/json")" s
}

eight=host1,host2,host3,host4,host5,host6,host7,host8
# It refuses root otherwise, the user who may enter namespaces.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Of MPICH, which would take shared memory.
export UCX_TLS=tcp,self UCX_NET_DEVICES=eth0

for ((round = 1; round <= rounds; round++)); do
    say "round $round of $rounds"
    if wanted goodput; then goodput; fi
    if wanted squall; then pipeline; fi
    if wanted openmpi; then
        mpi openmpi mpirun.openmpi --mca plm_rsh_agent "$PWD/tests/hosts/rsh" --mca btl tcp,self \
            --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 --host "$eight"
    fi
    if wanted more; then bulk pipeline.16 16 pipeline 3; fi
    if wanted mpich; then
        mpi mpich mpirun.mpich -launcher ssh -launcher-exec "$PWD/tests/hosts/rsh" -iface eth0 -hosts "$eight"
    fi
    if wanted slow; then slow 1 2 && slow 7 8; fi
    if wanted sequential; then bulk sequential 8 sequential 1; fi
done

# --- the table

if [ -z "$tsv" ]; then say "TCP's congestion control is $(cat /proc/sys/net/ipv4/tcp_congestion_control)"; fi
show
