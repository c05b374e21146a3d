#!/usr/bin/env bash
# Measures, in one run, what Squall does beside what this machine and an unreplicated redis-server do.
#
# The rounds are interleaved, so that a change of the machine's speed affects all figures; each figure is the median
# over the rounds. Needs redis-server and redis-benchmark (Debian: redis-server, redis-tools), and some three minutes a
# round.
set -euo pipefail
cd "$(dirname "$0")/../../.."

usage() {
    cat <<'END'
usage: apps/bench/peers/compare.sh [--tsv]

  --tsv    lines of id, value, unit, least, most, reference, ratio, target, verdict, tab-separated; # begins a comment

Rows:
  machine.*       squall-bench yardsticks
  ordered.*       squall-bench ordered --nodes 3 --senders all, by message size; GB/s beside one core's memory copy
  latency.*       squall-bench ordered --rate 1000, 100 bytes; beside the round trip of two threads that wake each other
  SET.*, GET.*    redis-benchmark with 50 connections and 100 bytes at one replica of three, with a pipeline of 16 and
                  without; beside redis-server without replication and persistence
  memory.*        what a replica's resident memory grows by for each of a million keys of 100 bytes; beside redis-server

  ratio           value / reference. Of rates more is better, of latencies and memory less.
  target          what the ratio or the value shall be; the verdict is met or missed, if the run has what it takes

Environment:
  ROUNDS=3             how many rounds
  QUICK=1              one round, everything shorter: to see that it works, not to measure
  ONLY="machine redis" which parts: machine ordered latency redis memory
  REDIS=HOST:PORT      a redis-server that runs already on this host, in place of a new one for each part
  REPLICAS="HOST:PORT HOST:PORT HOST:PORT"
                       the same of replicas. Loaded from outside, they keep what was written; their memory is looked at
                       once.
  SKIP_BUILD=1         take the binaries that are there
END
}

# What is aimed at, for the rows that have a target: "ratio" or "value", ">=" or "<=", a number.
targets() {
    cat <<'END'
ordered.100.rate     value >= 2000000
ordered.10240.bytes  value >= 3
latency.2-spin.p50   value <= 10
latency.2.p50        ratio <= 2.5
latency.3.p50        ratio <= 5
SET.P16.replica      ratio >= 0.333
SET.P1.replica       ratio >= 0.5
GET.P16.replica      ratio >= 0.8
GET.P1.replica       ratio >= 0.8
memory.replica1      ratio <= 2
memory.replica2      ratio <= 2
memory.replica3      ratio <= 2
END
}

# What other group communication does on such a machine, which this script does not measure.
yardsticks() {
    cat <<'END'
# Others on such a machine:
#   Derecho       143,000 msgs/s, 350 MB/s, latency 5.6 ms
#   corosync CPG  55,000 msgs/s, 49 MB/s
END
}

# shellcheck source=apps/bench/peers/figures.sh
. apps/bench/peers/figures.sh
take_arguments "$@"

if [ -n "${QUICK:-}" ]; then
    rounds=${ROUNDS:-1} seconds=0.5 requests=50000 keys=100000
else
    rounds=${ROUNDS:-3} seconds=3 requests=500000 keys=1000000
fi
parts=" ${ONLY:-machine ordered latency redis memory} "
sizes=1,100,1024,4096,10240

say() { printf '%s\n' "compare: $*" >&2; }
fail() { say "$@" && exit 1; }
wanted() { [[ $parts == *" $1 "* ]]; }

if wanted redis || wanted memory; then
    for program in redis-server redis-benchmark redis-cli; do
        command -v "$program" >/dev/null || fail "$program is missing (Debian: redis-server, redis-tools)"
    done
fi

if [ -z "${SKIP_BUILD:-}" ]; then
    cargo build --release --locked -p squall-bench -p squall-redis --bins >&2
fi
bin=${CARGO_TARGET_DIR:-target}/release
scratch=$(mktemp -d)
started=()

stop_servers() {
    local process
    for process in "${started[@]}"; do
        kill -TERM "$process" 2>/dev/null || true
    done
    for process in "${started[@]}"; do
        wait "$process" 2>/dev/null || true
    done
    started=()
}
trap 'stop_servers; rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- servers

port_of() { printf '%s' "${1##*:}"; }
host_of() { printf '%s' "${1%:*}"; }
cli() {
    local address=$1
    shift
    redis-cli -h "$(host_of "$address")" -p "$(port_of "$address")" "$@"
}

# free_port COUNT: the first of so many ports in a row at which no process listens. Beyond 32768 clients have theirs.
free_port() {
    local base offset
    for ((base = 20000 + RANDOM % 10000; base < 32000; base += 10)); do
        for ((offset = 0; offset < $1; offset++)); do
            ! (exec 3<>"/dev/tcp/127.0.0.1/$((base + offset))") 2>/dev/null || continue 2
        done
        printf '%s' "$base"
        return
    done
    fail "no free ports"
}

until_answers() {
    local tries process
    for ((tries = 0; tries < 300; tries++)); do
        [ "$(cli "$1" PING 2>/dev/null || true)" = PONG ] && return
        for process in "${started[@]}"; do kill -0 "$process" 2>/dev/null || break 2; done
        sleep 0.1
    done
    fail "nothing answers at $1: $(tail -n 5 "$scratch"/*.log 2>/dev/null)"
}

# Sets `redis` and `replicas`, to new servers unless others were given.
start_servers() {
    local base address
    redis=${REDIS:-}
    if [ -z "$redis" ]; then
        base=$(free_port 1)
        redis-server --port "$base" --bind 127.0.0.1 --save '' --appendonly no --dir "$scratch" >"$scratch/redis.log" 2>&1 &
        started+=($!)
        redis=127.0.0.1:$base
    fi
    read -ra replicas <<<"${REPLICAS:-}"
    if ((${#replicas[@]} == 0)); then
        base=$(free_port 3)
        "$bin/squall-redis" --port "$base" >"$scratch/replicas.log" 2>&1 &
        started+=($!)
        replicas=("127.0.0.1:$base" "127.0.0.1:$((base + 1))" "127.0.0.1:$((base + 2))")
    fi
    for address in "$redis" "${replicas[@]}"; do
        until_answers "$address"
    done
}

resident_bytes() {
    local process
    process=$(cli "$1" INFO server | tr -d '\r' | sed -n 's/^process_id://p')
    awk '/^VmRSS:/ { print $2 * 1024 }' "/proc/$process/status"
}

# --- parts

machine() {
    "$bin/squall-bench" yardsticks --json >"$scratch/json"
    local name value unit
    while read -r name value unit; do
        add "machine.$name" "$value" "$unit"
    done < <(paste -d ' ' <(field name <"$scratch/json") <(field value <"$scratch/json") <(field unit <"$scratch/json"))
}

ordered() {
    "$bin/squall-bench" ordered --fabric shm --nodes 3 --senders all --size "$sizes" --seconds "$seconds" --json |
        grep '"bench":"ordered"' >"$scratch/json"
    local size rate bytes
    while read -r size rate bytes; do
        add "ordered.$size.rate" "$rate" msgs/s
        add "ordered.$size.bytes" "$(awk "BEGIN { print $bytes / 1e9 }")" GB/s
    done < <(paste -d ' ' <(field size_bytes <"$scratch/json") <(field messages_per_second <"$scratch/json") \
        <(field bytes_per_second <"$scratch/json"))
}

# latency ID OPTIONS...
latency() {
    local id=$1
    shift
    "$bin/squall-bench" ordered --fabric shm --size 100 --rate 1000 --seconds "$seconds" --json "$@" |
        grep '"bench":"ordered"' >"$scratch/json"
    add "latency.$id.p50" "$(field latency_p50_us <"$scratch/json")" us
    add "latency.$id.p99" "$(field latency_p99_us <"$scratch/json")" us
}

# requests SIDE ADDRESS PIPELINE
requests() {
    redis-benchmark -h "$(host_of "$2")" -p "$(port_of "$2")" -t set,get -n "$requests" -c 50 -d 100 -P "$3" --csv \
        >"$scratch/csv" 2>"$scratch/errors.log"
    local name rate
    while IFS=, read -r name rate _; do
        name=${name//\"/} rate=${rate//\"/}
        case $name in SET | GET) add "$name.P$3.$1" "$rate" 1/s ;; esac
    done <"$scratch/csv"
    [ -n "${samples[GET.P$3.$1]:-}" ] || fail "redis-benchmark at $2 said: $(cat "$scratch/csv" "$scratch/errors.log")"
}

# memory SIDE ADDRESS...: loads by the first of them, looks at each.
memory() {
    local side=$1 address number=0
    shift
    local -A before
    for address; do before[$address]=$(resident_bytes "$address"); done
    local said
    said=$(awk -v keys="$keys" -v mark="$RANDOM$RANDOM" 'BEGIN {
        value = sprintf("%100s", ""); gsub(/ /, "x", value)
        for (n = 0; n < keys; n++) {
            key = sprintf("key:%s:%09d", mark, n)
            printf "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$100\r\n%s\r\n", length(key), key, value
        }
    }' | cli "$1" --pipe | tail -n 1)
    [ "$said" = "errors: 0, replies: $keys" ] || fail "loading $1 said: $said"
    for address; do
        # A read, so that what was written elsewhere is there.
        cli "$address" DBSIZE >/dev/null
        number=$((number + 1))
        add "memory.$side$([ $# = 1 ] || printf %s $number)" \
            "$(awk "BEGIN { print ($(resident_bytes "$address") - ${before[$address]}) / $keys }")" B/key
    done
}

for ((round = 1; round <= rounds; round++)); do
    say "round $round of $rounds"
    if wanted machine; then machine; fi
    if wanted ordered; then ordered; fi
    if wanted latency; then
        latency 2-spin --nodes 2 --spin always
        latency 2 --nodes 2
        latency 3 --nodes 3
    fi
    if wanted redis; then
        start_servers
        for pipeline in 16 1; do
            # Who goes first changes.
            if ((round % 2)); then
                requests redis "$redis" "$pipeline"
                requests replica "${replicas[0]}" "$pipeline"
            else
                requests replica "${replicas[0]}" "$pipeline"
                requests redis "$redis" "$pipeline"
            fi
        done
        stop_servers
    fi
    if wanted memory && { ((round == 1)) || [ -z "${REDIS:-}${REPLICAS:-}" ]; }; then
        start_servers
        memory redis "$redis"
        memory replica "${replicas[@]}"
        stop_servers
    fi
done

# --- the table

reference_of() {
    case $1 in
        ordered.*.bytes) echo machine.memcpy ;;
        latency.*) echo machine.eventfd_round_trip_two_cores ;;
        *.replica) echo "${1%replica}redis" ;;
        memory.replica*) echo memory.redis ;;
    esac
}

show
yardsticks
