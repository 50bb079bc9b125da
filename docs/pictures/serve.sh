# shellcheck shell=sh
# serve.sh - for the other scripts here, which source it: a server of a model, while the script runs
# or until it serves another.
#
# Environment: KVAHEAD (build/kvahead).

# serve MODEL OUT PORT [OPTION ...]: starts `kvahead serve` with the options and waits until it is
# ready; its log is OUT/serve.log.
serve() {
    model=$1 folder=$2 port=$3
    shift 3
    unserve
    "${KVAHEAD:-build/kvahead}" serve --model "$model" --port "$port" "$@" \
        > "$folder/serve.log" 2>&1 &
    server=$!
    trap unserve EXIT
    until curl -sf "http://127.0.0.1:$port/ready" > "$folder/ready"; do
        kill -0 $server
        sleep 0.2
    done
}

# Ends the server, if there is one.
unserve() {
    [ -z "${server:-}" ] || { kill "$server" && wait "$server"; } || true
    server=
}
