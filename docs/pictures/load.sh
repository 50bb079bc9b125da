#!/bin/sh
# load.sh - what docs/results/server.md shows under "Under load": the bundled model at rising rates.
#
#     docs/pictures/load.sh OUT        from the root of the source; OUT: a folder for the results
#
# Environment: KVAHEAD (build/kvahead), LOAD (kvahead-load), PORT (18331), SECONDS_EACH (20: how long
# a rate is held), URL (another server, which then is asked instead of one of ours).
# Tables: OUT/*.txt; pictures: OUT/*/load.svg, latency.svg.
set -eu
. docs/pictures/serve.sh

out=$1
load=${LOAD:-kvahead-load}
url=${URL:-}
mkdir -p "$out"

if [ -z "$url" ]; then
    url=http://127.0.0.1:${PORT:-18331}
    serve models/demo "$out" "${PORT:-18331}" --log-level warn
fi

run() {
    name=$1
    shift
    $load --base-url "$url" --ignore-eos --output-tokens lognormal:100:0.6 \
        --limit-ttft 2000 --limit-tpot 100 --out "$out/$name" "$@" > "$out/$name.txt"
    cat "$out/$name.txt"
}

# Prompts and answers of many lengths, Poisson arrivals.
run plain --rate auto:2 --duration "${SECONDS_EACH:-20}" --prompt-tokens lognormal:300:0.7
# The same answers behind system prompts that many share, and clients that leave.
run prefix --rate auto:2 --duration "${SECONDS_EACH:-20}" --prompt-tokens 700-1100 \
    --prefix-tokens 640 --prefix-groups 8 --cancel 10%
# Bursts: gaps that vary four times as much as Poisson's, at about half of what it takes.
rate=$(sed -n 's/^saturated above \([0-9.]*\).*/\1/p' "$out/plain.txt")
run bursts --rate "$(awk "BEGIN { print ${rate:-2} / 2 }")" --arrivals gamma:4 \
    --duration "${SECONDS_EACH:-20}" --prompt-tokens lognormal:300:0.7
