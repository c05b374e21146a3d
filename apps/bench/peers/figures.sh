# Samples of figures, and what they come to: for the scripts beside this one.

declare -A samples units
order=()
tsv=

# take_arguments ARGUMENT...: those that all these scripts have. `usage` is the script's.
take_arguments() {
    local argument
    for argument; do
        case $argument in
            --tsv) tsv=1 ;;
            -h | --help) usage && exit ;;
            *) usage >&2 && exit 2 ;;
        esac
    done
}

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

# rows: of each figure its id, value, unit, least, most, reference, ratio, target, verdict. The script says, in a
# function `reference_of`, beside which other figure one stands, and in `targets` what is aimed at: id, then "ratio" or
# "value", then ">=" or "<=", then a number.
rows() {
    local id value least most reference base ratio
    for id in "${order[@]}"; do
        read -r value least most < <(statistic "$id")
        reference=$(reference_of "$id") base=
        if [ -n "$reference" ]; then read -r base _ < <(statistic "$reference") || true; fi
        ratio=-
        if [ -n "$base" ]; then ratio=$(awk "BEGIN { if ($base) printf \"%.12g\", $value / $base; else print \"-\" }"); fi
        awk -v OFS='\t' -v id="$id" -v value="$value" -v unit="${units[$id]}" -v least="$least" -v most="$most" \
            -v reference="${base:+$reference}" -v ratio="$ratio" '
            $1 == id { target = $2 " " $3 " " $4; what = $2 == "ratio" ? ratio : value; limit = $4
                       met = what == "-" ? "-" : ($3 == ">=" ? what + 0 >= limit + 0 : what + 0 <= limit + 0) ? "met" : "missed" }
            END { print id, value, unit, least, most, reference ? reference : "-", ratio, target ? target : "-", met ? met : "-" }' \
            < <(targets)
    done
}

# show: the rows; as a table, unless `tsv` is set.
show() {
    if [ -n "$tsv" ]; then
        rows
    else
        rows | awk -F '\t' '
            function figure(x) { return x == "-" ? x : x >= 1000 || x <= -1000 ? sprintf("%d", x) : sprintf("%.3g", x) }
            function line(a, b, c, d, e, f, g) { printf "%-38s %11s %-7s %19s %7s  %-16s %s\n", a, b, c, d, e, f, g }
            BEGIN { line("", "median", "", "least to most", "ratio", "target", "verdict") }
            { line($1, figure($2), $3, figure($4) " to " figure($5), figure($7), $8, $9) }'
    fi
}
