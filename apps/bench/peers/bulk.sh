#!/usr/bin/env bash
# Measures, in one run, how long a message takes to four processes of this host: by Squall over shared memory, by
# MPI_Bcast of the installed MPI libraries, and by a plain loop that copies it to three places.
#
# The rounds are interleaved, so that a change of the machine's speed affects all figures; each figure is the median
# over the rounds. Needs a C compiler and OpenMPI (Debian: gcc, openmpi-bin, libopenmpi-dev), and MPICH for its rows
# (mpich, libmpich-dev); some half a minute a round. It wants a machine that does nothing else.
set -euo pipefail
cd "$(dirname "$0")/../../.."

usage() {
    cat <<'END'
usage: apps/bench/peers/bulk.sh [--tsv]

  --tsv    lines of id, value, unit, least, most, reference, ratio, target, verdict, tab-separated; # begins a comment

Rows, all for four processes of which each has a copy of its own, unless shared:
  bulk.SIZE       squall-bench bulk --fabric shm; beside OpenMPI's MPI_Bcast
  bulk.SIZE.copy  the same; beside the best plain loop
  openmpi.SIZE    apps/bench/peers/bulk/mpi_bcast.c, mpirun -np 4 --oversubscribe; the median of 20
  mpich.SIZE      the same with MPICH
  copy.*          squall-bench yardsticks: the loop that copies 256 MiB to three places, on one core and on two
  share.SIZE      squall-bench bulk --share: the pages of one copy, copy-on-write; sealing that copy included
  share.SIZE.after_seal  the same from when it is sealed
  share.SIZE.USE  what it then takes the slowest receiver to read, or to write, a byte of each page, when all receivers
                  do; beside bulk.SIZE.USE, the same in copies; and the page faults of each receiver

  ratio           value / reference; less is better
  target          what the ratio shall be; the verdict is met or missed, if the run has what it takes

Environment:
  ROUNDS=5               how many rounds
  QUICK=1                one round of small messages: to see that it works, not to measure
  ONLY="squall openmpi"  which parts: squall share copy openmpi mpich
  SKIP_BUILD=1           take the squall-bench that is there
END
}

# What is aimed at: a row, and what its ratio may be at most.
targets() {
    cat <<'END'
bulk.256MiB       0.5
bulk.256MiB.copy  1.3
bulk.1MiB         1
END
}

# shellcheck source=apps/bench/peers/figures.sh
. apps/bench/peers/figures.sh
take_arguments "$@"

nodes=4 sizes=(256 16 1)
rounds=${ROUNDS:-5}
if [ -n "${QUICK:-}" ]; then
    rounds=${ROUNDS:-1} sizes=(16 1)
fi
parts=" ${ONLY:-squall share copy openmpi mpich} "

say() { printf '%s\n' "bulk: $*" >&2; }
fail() { say "$@" && exit 1; }
wanted() { [[ $parts == *" $1 "* ]]; }

# needs PROGRAM PACKAGE...
needs() { command -v "$1" >/dev/null || missing+=("${@:2}"); }
missing=()
if wanted openmpi; then needs mpicc.openmpi gcc libopenmpi-dev && needs mpirun.openmpi openmpi-bin; fi
if wanted mpich; then needs mpicc.mpich gcc libmpich-dev && needs mpirun.mpich mpich; fi
((${#missing[@]} == 0)) ||
    fail "these Debian packages are missing: ${missing[*]} (or leave parts out: ONLY=\"squall copy openmpi\")"

if [ -z "${SKIP_BUILD:-}" ]; then
    cargo build --release --locked -p squall-bench --bins >&2
fi
squall=${CARGO_TARGET_DIR:-target}/release/squall-bench
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

for library in openmpi mpich; do
    if wanted "$library"; then "mpicc.$library" -O2 -o "$scratch/$library" apps/bench/peers/bulk/mpi_bcast.c; fi
done

# What is not a number has no milliseconds.
milliseconds() { awk '/^[0-9]/ { printf "%.6g", $1 * 1000 }' <<<"$1"; }

# --- parts

# bulk ID SIZE OPTIONS...
bulk() {
    local id=$1.$2MiB size=$2
    shift 2
    "$squall" bulk --fabric shm --nodes "$nodes" --size "${size}MiB" --json "$@" |
        grep '"bench":"bulk"' >"$scratch/json" || fail "squall-bench bulk --size ${size}MiB $* gave no figure"
    add "$id" "$(milliseconds "$(field seconds_median <"$scratch/json")")" ms
    add "$id.after_seal" "$(milliseconds "$(field after_seal_seconds_median <"$scratch/json")")" ms
    local use
    use=$(field touch <"$scratch/json")
    add "$id.$use" "$(milliseconds "$(field touch_seconds_median <"$scratch/json")")" ms
    add "$id.$use.page_faults" "$(field page_faults <"$scratch/json")" ""
}

copy() {
    "$squall" yardsticks --json | grep '"name":"copy_to_three' >"$scratch/json"
    local name value
    while read -r name value; do
        add "copy.${name#copy_to_three_}" "$value" ms
    done < <(paste -d ' ' <(field name <"$scratch/json") <(field value <"$scratch/json"))
    # The better of the two is what a figure is held against.
    add copy.best "$(field value <"$scratch/json" | grep -v null | LC_ALL=C sort -g | head -n 1)" ms
}

# mpi LIBRARY OPTIONS...
mpi() {
    local library=$1 size seconds bytes=()
    shift
    for size in "${sizes[@]}"; do bytes+=($((size << 20))); done
    # OpenMPI refuses root otherwise, the user of containers.
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        "mpirun.$library" -np "$nodes" "$@" "$scratch/$library" "${bytes[@]}" 2>"$scratch/errors" \
        >"$scratch/json" || fail "$library said: $(cat "$scratch/errors")"
    while read -r size seconds; do
        add "$library.$((size >> 20))MiB" "$(milliseconds "$seconds")" ms
    done < <(paste -d ' ' <(field size_bytes <"$scratch/json") <(field seconds_median <"$scratch/json"))
}

for ((round = 1; round <= rounds; round++)); do
    say "round $round of $rounds"
    for size in "${sizes[@]}"; do
        if wanted squall; then bulk bulk "$size"; fi
    done
    if wanted copy; then copy; fi
    if wanted openmpi; then mpi openmpi --oversubscribe; fi
    if wanted share; then
        for use in read write; do
            bulk share "${sizes[0]}" --share --touch "$use"
            bulk bulk "${sizes[0]}" --touch "$use"
        done
    fi
    if wanted mpich; then mpi mpich; fi
done

# --- the table

# row ID VALUE LEAST MOST UNIT REFERENCE
row() {
    local base= ratio=- target verdict=-
    if [ -n "$6" ]; then read -r base _ < <(statistic "$6") || true; fi
    if [ -n "$base" ]; then ratio=$(awk "BEGIN { printf \"%.4g\", $2 / $base }"); fi
    target=$(targets | awk -v id="$1" '$1 == id { print $2 }')
    if [ -n "$target" ] && [ "$ratio" != - ]; then
        verdict=$(awk "BEGIN { print $ratio <= $target ? \"met\" : \"missed\" }")
    fi
    printf '%s\t' "$1" "$2" "$5" "$3" "$4" "$([ -n "$base" ] && printf %s "$6" || printf -)" "$ratio" \
        "$([ -n "$target" ] && printf 'ratio <= %s' "$target" || printf -)"
    printf '%s\n' "$verdict"
}

rows() {
    local id value least most
    for id in "${order[@]}"; do
        read -r value least most < <(statistic "$id")
        case $id in
            *.page_faults) row "$id" "$value" "$least" "$most" "" "" ;;
            share.*.read | share.*.write) row "$id" "$value" "$least" "$most" ms "bulk.${id#*.}" ;;
            *.read | *.write | *.after_seal) row "$id" "$value" "$least" "$most" ms "" ;;
            bulk.* | share.*) row "$id" "$value" "$least" "$most" ms "openmpi.${id#*.}" ;;
            *) row "$id" "$value" "$least" "$most" "${units[$id]}" "" ;;
        esac
        # The loop copies so much, and no other message is held against it.
        if [ "$id" = bulk.256MiB ]; then row "$id.copy" "$value" "$least" "$most" ms copy.best; fi
    done
}

if [ -n "$tsv" ]; then
    rows
else
    rows | awk -F '\t' '
        function line(a, b, c, d, e, f, g) { printf "%-28s %9s %-3s %21s %7s  %-13s %s\n", a, b, c, d, e, f, g }
        BEGIN { line("", "median", "", "least to most", "ratio", "target", "verdict") }
        { line($1, sprintf("%.4g", $2), $3, sprintf("%.4g to %.4g", $4, $5), $7, $8, $9) }'
fi
