#!/bin/sh
# make.sh - the figures of docs/results/quality.md: RULER by policy, the sweep over topk, the needle grid and the
# heat map of what decoding attends to, all of the bundled model.
#
#     docs/pictures/make.sh OUT        from the root of the source; OUT: a folder for the results
#
# Environment: KVAHEAD (build/kvahead), QUALITY (kvahead-quality), PORT (18330), SAMPLES (30),
# THREADS (0: one per core). On a CPU specache without a predictor is that of sync. Run again, it
# goes on where it stopped. Tables: OUT/*/report.md and OUT/eval.txt.
set -eu
. docs/pictures/serve.sh

out=$1
kvahead=${KVAHEAD:-build/kvahead}
quality=${QUALITY:-kvahead-quality}
port=${PORT:-18330}
samples=${SAMPLES:-30}
model=models/demo
seed=7002
all=niah_single_1,niah_multikey_2,niah_multikey_3,vt,niah_multivalue,niah_multiquery
mkdir -p "$out"

# No sequence stays in 16 bits because it is short.
serve "$out" "$port" --kv full --kv kivi:min_tokens=0 --kv specache:min_tokens=0 --threads "${THREADS:-0}"

run() {
    kind=$1 name=$2
    shift 2
    $quality "$kind" --base-url "http://127.0.0.1:$port/v1" --seed $seed --out "$out/$name" "$@" \
        > "$out/$name.log" 2>&1
}

# Tables 1 and 4 of the paper: bits, with and without fetched rows, by predictor.
run ruler policies --lengths 4k,8k --tasks $all --samples "$samples" --policies \
full,kivi:1,kivi:2,specache:1:64,specache:1:256,specache:2:64,\
specache:1:64:predictor=spec-token,specache:2:64:predictor=spec-token,\
specache:1:64:predictor=spec-token:on_mispredict=chain,\
specache:2:64:predictor=spec-token:on_mispredict=chain,\
specache:1:64:predictor=prev-query:reselect_below=0,specache:1:64:paper=true

# Figure 5: k. Table 5: levels.
sweep=full
for bits in 1 2; do
    sweep=$sweep,kivi:$bits
    for k in 16 32 64 128 256 512; do
        sweep=$sweep,specache:$bits:$k
    done
done
four=niah_single_1,niah_multikey_2,niah_multikey_3,vt
half=$((samples / 2))
run ruler topk --lengths 4k,8k --tasks $four --samples $half --policies $sweep
run ruler levels --lengths 4k,8k --tasks $four --samples $half --policies \
full,kivi:1:levels=minmax,kivi:1:levels=mse,kivi:2:levels=minmax,kivi:2:levels=mse,\
specache:1:64:levels=minmax,specache:1:64:levels=mse,specache:2:64:levels=minmax,\
specache:2:64:levels=mse

# Figure 4: the needle, by depth and length.
run needle needle --lengths 2k,4k,8k --depths 6 --samples 3 \
    --policies full,kivi:1,specache:1:64

# What attends in 16 bits, by layer and head, and how far the distributions are from full.
$quality prompts --tasks niah_multikey_2,vt --lengths 4k --samples 10 --seed $seed \
    --tokenizer $model/tokenizer.json > "$out/prompts.jsonl"
"$kvahead" eval --model $model --prompts "$out/prompts.jsonl" --tokens 40 --policies \
kivi:1,kivi:2,specache:1:64,specache:1:64:predictor=spec-token,specache:2:64,\
specache:2:64:predictor=spec-token,specache:2:64:predictor=spec-token:on_mispredict=chain,\
specache:2:64:predictor=prev-query,specache:2:64:predictor=prev-query:reselect_below=0 \
    --json "$out/eval.json" > "$out/eval.txt"
"$kvahead" eval --model $model --prompts "$out/prompts.jsonl" --tokens 40 \
    --policies kivi:2,specache:2:64,specache:2:64:predictor=spec-token --svg docs/pictures/attended.svg \
    > "$out/attended.txt"
cp "$out/topk/score_by_topk.svg" "$out/needle/needle.svg" docs/pictures/
