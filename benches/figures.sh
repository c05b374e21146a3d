# Samples of figures, and what they come to: for the scripts beside this one.

declare -A samples units
order=()

# add ID VALUE UNIT: one more sample. What this machine can't show is no sample.
add() {
    [ -n "$2" ] && [ "$2" != null ] || return 0
    [ -n "${units[$1]:-}" ] || order+=("$1")
    units[$1]=$3
    samples[$1]+="$2 "
}

# statistic ID: median, least, most.
statistic() {
    tr ' ' '\n' <<<"${samples[$1]:-}" | sed '/^$/d' | LC_ALL=C sort -g | awk '
        { v[NR] = $1 }
        END { if (NR) printf "%.12g %.12g %.12g\n", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2, v[1], v[NR] }'
}

# field NAME: this field of each JSON object on standard input, which are flat and take a line each.
field() { sed -nE 's/.*"'"$1"'":"?([^",}]*).*/\1/p'; }
