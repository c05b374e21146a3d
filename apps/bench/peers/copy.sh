#!/usr/bin/env bash
# Measures, in one run, the time of copying to three directories of this host by `squall cp`, cp, rsync, and tar with
# tee.
#
# The rounds are interleaved, so that a change of the machine's speed affects all figures; each figure is the median
# over the rounds. Contents are in the page cache before. Needs rsync (Debian: rsync), and 6 GB of disk and 2 GB more
# for each round.
#
# Two things would measure something else than a copy. ext4 takes up to ten times as long to make a file when many were
# removed in the minute before, whose inodes it does not use again so soon: copies of small files are moved away, and
# removed at the end. A virtual machine whose hypervisor takes free memory back (free page reporting) writes to its page
# cache at a tenth of the speed: as much memory as a copy takes is touched before it.
set -euo pipefail
cd "$(dirname "$0")/../../.."

usage() {
    cat <<'END'
usage: apps/bench/peers/copy.sh [--tsv]

  --tsv    lines of id, value, unit, least, most, reference, ratio, target, verdict, tab-separated

Rows: WHAT.SYNC.HOW, in seconds

  WHAT     large: one file of 1.5 GB; small: 10,000 files of up to 32 KiB
  SYNC     cached: until all is written to the page cache; synced: until it is on the disk
  HOW      squall, cp (three at once), rsync (three at once), tar (one, by tee to three)
  ratio    beside the fastest of cp, rsync and tar of that row

Environment:
  ROUNDS=3        how many rounds
  DIRECTORY=.     where to copy; /dev/shm should have room for 5 GB
  SKIP_BUILD=1    take the binary that is there
END
}

# shellcheck source=apps/bench/peers/figures.sh
. apps/bench/peers/figures.sh
take_arguments "$@"

say() { printf '%s\n' "copy: $*" >&2; }
command -v rsync >/dev/null || { say "rsync is missing (Debian: rsync)" && exit 1; }
if [ -z "${SKIP_BUILD:-}" ]; then
    cargo build --release --locked -p squall-cli >&2
fi
squall=$(realpath "${CARGO_TARGET_DIR:-target}/release/squall")
scratch=$(mktemp -d "${DIRECTORY:-.}/copy-bench.XXXXXX")
scratch=$(realpath "$scratch")
receivers=()
stop() {
    kill -INT "${receivers[@]}" 2>/dev/null || true
    wait "${receivers[@]}" 2>/dev/null || true
    rm -rf "$scratch" "/dev/shm/copy-bench.$$"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir -p "$scratch"/{from/small,a,b,c,old}
head -c 1500000000 /dev/urandom >"$scratch/from/large"
for ((i = 0; i < 10000; i++)); do
    ((i % 100)) || mkdir "$scratch/from/small/$((i / 100))"
    head -c $((i * 7919 % 32768)) "$scratch/from/large" >"$scratch/from/small/$((i / 100))/$i"
done
for name in a b c; do
    "$squall" cp serve --quiet --cluster "bench-$$" --dir "$scratch/$name" --name "$name" >"$scratch/$name.ready" 2>&1 &
    receivers+=($!)
done
for name in a b c; do
    until grep -q ready "$scratch/$name.ready"; do sleep 0.05; done
done

by_squall() {
    local sync=()
    [ "$2" = synced ] || sync=(--no-sync)
    "$squall" cp push --quiet --cluster "bench-$$" "$scratch/from/$1" --to a,b,c "${sync[@]}" >/dev/null
}
by_cp() { for name in a b c; do cp -a "$scratch/from/$1" "$scratch/$name/" & done && wait_copies; }
by_rsync() { for name in a b c; do rsync -a "$scratch/from/$1" "$scratch/$name/" & done && wait_copies; }
by_tar() {
    tar -C "$scratch/from" -c "$1" | tee >(tar -C "$scratch/a" -x) >(tar -C "$scratch/b" -x) | tar -C "$scratch/c" -x
    # The others may still be writing.
    while pgrep -P $$ -x tar >/dev/null; do sleep 0.01; done
}
# Waits for copies, and not for the receivers.
wait_copies() {
    local copy
    for copy in $(jobs -pr); do
        case " ${receivers[*]} " in *" $copy "*) ;; *) wait "$copy" ;; esac
    done
}

# Makes way for the next copy.
clear_away() {
    rm -rf "$scratch"/{a,b,c}/large
    for name in a b c; do
        [ ! -e "$scratch/$name/small" ] || mv "$scratch/$name/small" "$(mktemp -d "$scratch/old/XXXXXX")"
    done
    sync -f "$scratch"
    head -c "$1" /dev/zero >"/dev/shm/copy-bench.$$"
    rm "/dev/shm/copy-bench.$$"
}

for ((round = 1; round <= ${ROUNDS:-3}; round++)); do
    say "round $round of ${ROUNDS:-3}"
    for what in large small; do
        for sync in cached synced; do
            # Who goes first changes: it may have to wait for memory that a hypervisor has taken back.
            hows=(squall cp rsync tar squall cp rsync tar)
            for how in "${hows[@]:round % 4:4}"; do
                case $what in large) clear_away 5G ;; small) clear_away 1G ;; esac
                begin=$(date +%s%N)
                "by_$how" "$what" "$sync"
                [ "$sync" = cached ] || [ "$how" = squall ] || sync -f "$scratch"
                end=$(date +%s%N)
                for name in a b c; do
                    diff -rq "$scratch/from/$what" "$scratch/$name/$what" >&2
                done
                add "$what.$sync.$how" "$(awk "BEGIN { print ($end - $begin) / 1e9 }")" s
            done
        done
    done
done

targets() {
    for what in large small; do
        for sync in cached synced; do echo "$what.$sync.squall ratio <= 1"; done
    done
}
# The fastest of the others.
reference_of() {
    local how best='' least='' median
    case $1 in *.squall) ;; *) return ;; esac
    for how in cp rsync tar; do
        read -r median _ < <(statistic "${1%squall}$how") || continue
        if [ -z "$least" ] || awk "BEGIN { exit !($median < $least) }"; then
            least=$median best=${1%squall}$how
        fi
    done
    echo "$best"
}
show
