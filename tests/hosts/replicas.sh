# Replicas of the key-value store on hosts 1 to REPLICAS, and clients: for the scripts beside this one.

. "$(dirname "${BASH_SOURCE[0]}")/cluster.sh"
command -v redis-cli >/dev/null || fail "redis-cli is missing (Debian: redis-tools)"
[ -x "$bin/squall-redis" ] && [ -x "$bin/squall" ] ||
    fail "a program is missing in $bin: run \`cargo build --release -p squall-cli -p squall-redis --bins\`"

readonly REPLICAS=5
# Where clients run that have a host of their own.
readonly CLIENT=6

# at K COMMAND...: what replica K answers to a client of another host.
at() {
    local replica=$1
    shift
    "$hosts" run $CLIENT redis-cli -h "host$replica" -p $((7000 + replica)) "$@"
}

# near K COMMAND...: to a client of its own host.
near() {
    local replica=$1
    shift
    "$hosts" run "$replica" redis-cli -h "10.77.0.$replica" -p $((7000 + replica)) "$@"
}

serves() { [ "$(at "$1" PING)" = PONG ]; }

# start_replicas SECURITY: none or tls. Waits until all serve; `replicas` has their processes, by number.
start_replicas() {
    local k
    replicas=(-)
    configure "$script-$1" "$1" $REPLICAS
    printf '[groups.kv]\nbulk_reserve = "64MiB"\n' >>"$scratch/cluster.toml"
    "$hosts" up $CLIENT --rate 200mbit
    for ((k = 1; k <= REPLICAS; k++)); do
        "$hosts" run "$k" "$bin/squall-redis" --id "$k" --config "$scratch/cluster.toml" --port 7001 \
            --listen "10.77.0.$k" --protected-mode no >"$scratch/replica$k.log" 2>&1 &
        replicas+=($!)
        # `hosts down` kills them, of which bash shall not speak.
        disown
    done
    for ((k = 1; k <= REPLICAS; k++)); do within 20 serves "$k" || fail "replica $k does not serve"; done
}
