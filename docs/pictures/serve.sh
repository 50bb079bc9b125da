# shellcheck shell=sh
# serve.sh - for the other scripts here, which source it: a server of the bundled model, while the
# script runs.
#
# Environment: KVAHEAD (build/kvahead).

# serve OUT PORT [OPTION ...]: starts `kvahead serve` with the options and waits until it is ready;
# its log is OUT/serve.log. It ends with the script.
serve() {
    folder=$1 port=$2
    shift 2
    "${KVAHEAD:-build/kvahead}" serve --model models/demo --port "$port" "$@" \
        > "$folder/serve.log" 2>&1 &
    server=$!
    trap 'kill $server' EXIT
    until curl -sf "http://127.0.0.1:$port/ready" > "$folder/ready"; do
        kill -0 $server
        sleep 0.2
    done
}
