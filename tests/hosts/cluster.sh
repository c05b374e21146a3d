# Clusters on hosts: for the scripts beside this one, which say in `script` what they are called. The programs are those
# of the release build, or those in the folder SQUALL_BIN.

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
hosts=$PWD/tests/hosts/hosts
bin=$(realpath -m "${SQUALL_BIN:-${CARGO_TARGET_DIR:-target}/release}")
export SQUALL_HOSTS=$script
scratch=$(mktemp -d)
trap '"$hosts" down; rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
    printf '%s\n' "$script: $*" >&2
    tail -n 5 "$scratch"/*.log >&2 2>/dev/null || true
    exit 1
}
shows() { printf '%s\n' "ok: $*"; }

now_us() { printf '%s' "${EPOCHREALTIME/[.,]/}"; }

# within SECONDS COMMAND...: tries until it succeeds; what comes too late does not count.
within() {
    local until
    until=$(($(now_us) + $(awk "BEGIN { printf \"%d\", $1 * 1e6 }")))
    shift
    until "$@" >/dev/null 2>&1; do
        (($(now_us) < until)) || return 1
        sleep 0.02
    done
    (($(now_us) <= until))
}

# configure CLUSTER SECURITY N: writes the file for nodes 1 to N on the hosts of their numbers; SECURITY is none or tls.
configure() {
    local node
    rm -rf "$scratch/keys"
    {
        printf 'cluster = "%s"\n' "$1"
        if [ "$2" = none ]; then printf 'security = "none"\n'; fi
        printf '[fabric]\nbackend = "tcp"\n[addresses]\n'
        for ((node = 1; node <= $3; node++)); do printf '%d = "host%d:7700"\n' "$node" "$node"; done
        if [ "$2" = tls ]; then
            printf '[security]\nca = "keys/ca.pem"\ncertificate = "keys/node-{id}.pem"\nkey = "keys/node-{id}.key"\n'
        fi
    } >"$scratch/cluster.toml"
    if [ "$2" = tls ]; then
        "$bin/squall" keys init --cluster "$1" --dir "$scratch/keys" >/dev/null
        for ((node = 1; node <= $3; node++)); do
            "$bin/squall" keys add --dir "$scratch/keys" --node "$node" >/dev/null
        done
    fi
}
