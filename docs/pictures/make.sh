#!/bin/sh
# make.sh - the tables and pictures of docs/results/quality.md.
#
#     docs/pictures/make.sh OUT [MODEL [STAGE ...]]      from the root of the source
#
# OUT: a folder for the results. MODEL: smollm2-135m-instruct, qwen2.5-coder-1.5b-instruct or demo;
# without one all three. The first two are fetched if they are not there (docs/models.md). STAGE:
# prose, code, wikitext-2, deep (divergence along a text; deep: behind more of it), weights (formats
# of weights), kept, kept-bits
# and kept-budget (policies that drop tokens, docs/results/kept.md), ahead, beside, long, columns
# and relative (rows chosen a layer ahead, docs/results/infinigen.md: their settings, others at as
# many bytes, by context, a prompt's own columns, by share of the tokens), gap (between predictors),
# settings (levels, layers, rows, sinks), facts, needles, lists, others (tasks), rows (scores by rows
# fetched), alike (scores by settings, of facts that look alike), grid (a needle by depth and
# length); of demo policies, topk, levels, needle, steps; without one all of them. Run again, it goes
# on where it stopped. Tables: OUT/MODEL/tables.md, of demo also OUT/demo/*/report.md.
#
# Environment: KVAHEAD (build/kvahead), QUALITY (kvahead-quality), PYTHON (python3: one that has
# kvahead_quality), PORT (18330), THREADS (1), TEXTS (a folder with prose.txt and wikitext-2.txt),
# LENGTHS (of tasks, each with the number of contexts that each task has there, as "4k:2 8k:1"; the
# stage's), POLICIES (of tasks: the stage's), SAMPLES (20: contexts of demo).
#
# On a CPU specache without a predictor is that of sync, the oracle.
set -eu
. docs/pictures/serve.sh

out=$1
shift
kvahead=${KVAHEAD:-build/kvahead}
quality=${QUALITY:-kvahead-quality}
port=${PORT:-18330}
threads=${THREADS:-1}
samples=${SAMPLES:-20}
seed=7002
low=kivi:1,kivi:2,kivi:4,specache:1:64,specache:2:64,\
specache:1:64:predictor=spec-token,specache:2:64:predictor=spec-token,\
specache:1:64:predictor=prev-query,specache:2:64:predictor=prev-query,\
specache:1:64:value_bits=2,specache:1:64:value_bits=2:predictor=spec-token,\
specache:1:64:paper=true,specache:2:64:paper=true

dropping=h2o:heavy=5%:recent=5%,h2o,h2o:heavy=25%:recent=25%,h2o:mass=all,\
streaming:window=192:positions=original,streaming:window=384:positions=original,\
streaming:window=960:positions=original
plain=coding=plain
few=q-hitter:16,q-hitter:8,q-hitter:4,q-hitter:3,q-hitter:2,\
q-hitter:4:$plain,q-hitter:3:$plain,q-hitter:2:$plain,q-hitter:2:lambda=0,q-hitter:2:lambda=100,\
q-hitter:2:norm=minmax,q-hitter:3:$plain:lambda=0,q-hitter:3:$plain:lambda=100,\
q-hitter:3:$plain:norm=minmax
# Policies that keep part, and that keep all, by their bytes on the device.
budgets=h2o:heavy=2%:recent=3%,h2o:heavy=5%:recent=5%,h2o,h2o:heavy=15%:recent=15%,\
h2o:heavy=25%:recent=25%,q-hitter:2,q-hitter:2:heavy=35%:recent=15%,q-hitter:4,\
q-hitter:4:heavy=35%:recent=15%,streaming:window=64:positions=original,\
streaming:window=192:positions=original,streaming:window=384:positions=original,\
streaming:window=640:positions=original,streaming:window=960:positions=original,\
kivi:1,kivi:2,kivi:4,specache:1:16,specache:1,specache:2,specache:2:256
i=infinigen
ahead=offload,$i:alpha=1:cap=100%,$i:alpha=2:cap=100%,$i:alpha=4:cap=100%,$i:alpha=6:cap=100%,\
$i:alpha=8:cap=100%,$i:sinks=0:alpha=2:cap=100%,$i:sinks=0:alpha=4:cap=100%,\
$i:sinks=0:alpha=6:cap=100%,$i:paper=true,$i:alpha=2,$i,$i:cap=10%,$i:cap=5%,$i:alpha=2:cap=5%,\
$i:skip_layers=1,$i:skip_layers=4,$i:partial=10,$i:partial=20,$i:partial=50,$i:partial=100,\
$i:skew=none:partial=10,$i:skew=none:partial=20,$i:skew=none,$i:skew=none:partial=50,\
$i:partial_bits=8,kivi:2,specache:1,specache:2
beside=$i:alpha=1,$i:alpha=2,$i,$i:alpha=6,$i:cap=100%,$i:alpha=2:cap=5%,$i:alpha=1:cap=2%,\
$i:skew=none,$i:partial=10,$i:skew=none:partial=10,$i:paper=true,specache:1,specache:2,\
specache:1:256,kivi:2,h2o:heavy=5%:recent=5%,h2o:heavy=6%:recent=6%,h2o
long=$i,$i:alpha=2,$i:cap=256,$i:cap=64,$i:cap=64:paper=true,$i:skew=none:cap=64,specache:1,\
specache:2,h2o:heavy=64:recent=64,h2o,streaming:window=192:positions=original
columns=$i,$i:columns=prompt,$i:partial=20,$i:partial=20:columns=prompt,$i:partial=10,\
$i:partial=10:columns=prompt,$i:skew=none:partial=20,$i:skew=none:partial=20:columns=prompt,\
$i:skew=none:partial=10,$i:skew=none:partial=10:columns=prompt,$i:paper=true:columns=static,\
$i:paper=true
relative=
for share in 2 4 7 10 15 20; do
    relative=$relative$i:alpha=100:cap=$share%,$i:alpha=100:cap=$share%:skew=none,
done
for half in 2 4 5 8 10; do
    relative=${relative}h2o:heavy=$half%:recent=$half%,
done
allowed='--kv-allow full --kv-allow kivi --kv-allow specache --kv-allow streaming --kv-allow h2o
--kv-allow q-hitter --kv-allow infinigen'
spec=specache:1:64:predictor=spec-token
paper=specache:1:64:paper=true
previous=specache:1:64:predictor=prev-query

# start MODEL [OPTION ...]: a server for which no sequence stays in 16 bits because it is short, and
# whose streams nobody waits for, so that steps are as full as they can be.
start() {
    model=$1
    shift
    # shellcheck disable=SC2086 # $allowed is several words
    serve "$model" "$out/$name" "$port" --threads "$threads" --step-time 0 --prefill-share 90 \
        --host-memory 3G --device-memory 4G --log-level warn \
        --kv full --kv kivi:min_tokens=0 --kv specache:min_tokens=0 $allowed "$@"
}

# ask KIND FOLDER [OPTION ...]: kvahead-quality.
ask() {
    kind=$1 folder=$2
    shift 2
    $quality "$kind" --base-url "http://127.0.0.1:$port/v1" --seed $seed \
        --out "$out/$name/$folder" "$@" > "$out/$name/$folder.log" 2>&1
}

# by_length FOLDER POLICIES LENGTHS [OPTION ...]: tasks, of several questions a context, under the
# policies and at the lengths named or those of the environment.
by_length() {
    into=$1 policies=${POLICIES:-$2} lengths=${LENGTHS:-$3}
    shift 3
    case $policies in
    *infinigen*)
        skewed
        start "$name" --skew "$skew"
        ;;
    *) start "$name" ;;
    esac
    for length in $lengths; do
        ask ruler "$into" --policies "full,$policies" --together 24 --concurrency 1 \
            --stop-at-answer --lengths "${length%:*}" --samples "${length#*:}" "$@"
    done
    unserve
}

# along NAME TEXT [OPTION ...]: the divergence along a text, unless it is there already.
along() {
    to=$out/$name/kl-$1
    [ ! -s "$to.json" ] || return 0
    text=$2
    shift 2
    "$kvahead" eval --model "$name" --threads "$threads" --text "$text" "$@" --json "$to.part" \
        > "$to.log" 2>&1
    mv "$to.part" "$to.json"
}

# Sets skew to a file of the model's, made of prose.
skewed() {
    skew=$out/$name/skew
    [ -s "$skew" ] || "$kvahead" skew --model "$name" --threads "$threads" \
        --text "${TEXTS:?}/prose.txt" --out "$skew" > "$skew.log" 2>&1
}

# One stage of a model that people use. From the model's size: the windows of texts, and the lengths
# and tasks of which full KV has something to lose.
real() {
    case $name in
    smollm2*)
        windows='--from 3072 --tokens 64 --windows 4' deep='--from 7936 --tokens 64 --windows 2'
        questions=10 facts='2k:2 4k:2 8k:2' needles='2k:6 4k:4 8k:6' lists='2k:4 4k:4 8k:2'
        others='2k:4 4k:4 8k:2' rows='2k:4 4k:4' grid=2k,4k,8k:6
        ;;
    *)
        windows='--from 4096 --tokens 64 --windows 2' deep='--from 16384 --tokens 64 --windows 1'
        questions=6 facts='4k:1 8k:1 16k:1 30k:1' needles='4k:2 8k:1' lists='4k:4 8k:2 16k:1'
        others='4k:2 8k:1 16k:2 30k:1' rows='4k:4 8k:1' grid=4k,8k:1
        ;;
    esac
    # shellcheck disable=SC2086 # windows are several words
    case $1 in
    prose | wikitext-2) along "$1" "${TEXTS:?}/$1.txt" $windows --look 4 --policies $low ;;
    code)
        cat engine/eval/*.c cli/eval/*.c engine/kv/*.c > "$out/code.txt"
        along code "$out/code.txt" $windows --look 4 --policies $low
        ;;
    deep) along deep "${TEXTS:?}/prose.txt" $deep --look 4 --policies $low ;;
    weights) # Formats of weights crossed with bits of KV, all against full with 16-bit weights.
        for format in bf16 int8 int4; do
            along $format "${TEXTS:?}/prose.txt" $windows --look 0 --weights $format \
                --policies full,kivi:1,kivi:2,specache:1:64,specache:2:64
        done
        ;;
    kept) # Policies that drop tokens, beside others of as many bytes.
        along kept "${TEXTS:?}/prose.txt" --from 1984 --tokens 48 --windows 4 --look 0 \
            --policies "$dropping,kivi:1,kivi:2,specache:1,specache:2"
        ;;
    kept-budget) # Divergence against bytes on the device.
        along kept-budget "${TEXTS:?}/prose.txt" --from 1984 --tokens 48 --windows 4 --look 0 \
            --policies "$budgets"
        ;;
    kept-bits) # Kept tokens in few bits.
        along kept-bits "${TEXTS:?}/wikitext-2.txt" --from 1984 --tokens 32 --windows 6 --look 0 \
            --policies \
            "$few,streaming:window=192:positions=original,kivi:1,kivi:2,specache:1,specache:2"
        ;;
    ahead) # Rows chosen a layer ahead, by thresholds, columns and layers.
        skewed
        along ahead "${TEXTS:?}/prose.txt" --weights bf16 --skew "$skew" --from 2048 --tokens 16 \
            --windows 8 --look 4 --policies "$ahead"
        ;;
    beside) # Others at as many bytes on the device, or moved in a step.
        skewed
        along beside "${TEXTS:?}/wikitext-2.txt" --skew "$skew" --from 2048 --tokens 24 \
            --windows 8 --look 4 --policies "$beside"
        ;;
    long) # As many tokens a head in any context.
        skewed
        for from in 2048 4096 7936; do
            along long-$from "${TEXTS:?}/wikitext-2.txt" --weights bf16 --skew "$skew" \
                --from $from --tokens 24 --windows 8 --look 0 --policies "$long"
        done
        ;;
    columns) # Columns of partial keys: the same for all prompts, or the prompt's own.
        skewed
        along columns "${TEXTS:?}/prose.txt" --weights bf16 --skew "$skew" --from 2048 \
            --tokens 16 --windows 8 --look 4 --policies "$columns"
        ;;
    relative) # Figure 11 of InfiniGen: by the share of tokens that attend.
        skewed
        along relative "${TEXTS:?}/wikitext-2.txt" --weights bf16 --skew "$skew" --from 2048 \
            --tokens 24 --windows 8 --look 0 --policies "${relative%,}"
        ;;
    gap) # Between the oracle, a speculative token, the paper's settings and the previous query.
        along gap "${TEXTS:?}/prose.txt" $windows --look 4 --policies \
specache:1:64,$spec,$spec:on_mispredict=chain,$paper,$paper:sinks=4,$paper:fetch=resident,\
$paper:on_mispredict=predecode,$paper:on_mispredict=predecode:sinks=4,\
$previous,$previous:reselect_below=95,$previous:reselect_below=98
        ;;
    settings) # Levels, layers, rows and sinks.
        along settings "${TEXTS:?}/prose.txt" $windows --look 4 --policies \
kivi:1,kivi:1:levels=minmax,kivi:1:levels=mse,specache:1:64,specache:1:64:levels=minmax,\
specache:1:64:levels=mse,specache:1:64:group=32,specache:1:64:skip_layers=1,specache:1:128,\
specache:1:64:sinks=16,specache:2:64,specache:2:64:levels=minmax,specache:2:64:levels=mse
        ;;
    facts) by_length facts $low "$facts" --questions $questions --answer-tokens 16 --tasks facts ;;
    needles)
        by_length needles "$low,specache:1:64:levels=minmax,$previous:successor=0,\
specache:2:64:predictor=prev-query:successor=0" "$needles" \
            --questions $questions --answer-tokens 16 --tasks niah_single_2,niah_multikey_1
        ;;
    lists)
        by_length lists $low "$lists" --questions 1 --answer-tokens 64 \
            --tasks niah_multivalue,niah_multiquery,fwe
        ;;
    others)
        by_length others $low "$others" --questions $questions --answer-tokens 40 --tasks \
            niah_single_1,niah_single_3,niah_multikey_2,niah_multikey_3,vt,cwe
        ;;
    rows)
        by_length rows kivi:1,specache:1:16,specache:1:32,specache:1:64,specache:1:128,\
specache:1:256,kivi:2,specache:2:16,specache:2:32,specache:2:64 "$rows" \
            --questions $questions --answer-tokens 16 --tasks niah_multikey_1
        ;;
    alike) # Settings, where the scores of one bit tell too little: a text of pairs of UUIDs.
        by_length alike kivi:2,kivi:4,specache:1:64,specache:1:64:successor=0,\
specache:1:64:predictor=spec-token,specache:1:64:predictor=spec-token:successor=0,\
specache:1:64:predictor=prev-query,specache:1:64:predictor=prev-query:successor=0,\
specache:2:64:predictor=prev-query,specache:1:64:group=32,specache:1:64:skip_layers=2,\
specache:1:64:sinks=16,specache:1:64:levels=minmax,specache:1:64:value_bits=2,\
specache:1:64:value_bits=2:predictor=spec-token,specache:1:64:value_bits=2:predictor=prev-query,\
specache:1:128,specache:1:128:value_bits=2,specache:1:128:levels=minmax,specache:1:256,\
specache:1:256:levels=minmax,specache:2:32,specache:2:64,specache:2:128 4k:4 \
            --questions 10 --answer-tokens 40 --tasks niah_multikey_3
        ;;
    grid)
        start "$name"
        ask needle grid --lengths "${grid%:*}" --depths 5 --samples "${grid#*:}" --concurrency 1 \
            --together 24 --stop-at-answer --answer-tokens 16 --policies \
            "full,${POLICIES:-kivi:1,specache:1:64,$spec,specache:2:64}"
        unserve
        cp "$out/$name/grid/needle.svg" "docs/pictures/needle-$name.svg"
        ;;
    *) echo "make.sh: no stage $1 of $name" >&2 && exit 2 ;;
    esac
    svg=
    [ ! -s "$out/$name/kl-prose.json" ] || svg="--svg docs/pictures/divergence-$name.svg"
    [ ! -s "$out/$name/kl-kept-budget.json" ] || svg="$svg --budget-svg docs/pictures/kept-$name.svg"
    [ ! -s "$out/$name/kl-beside.json" ] || svg="$svg --beside-svg docs/pictures/beside-$name.svg"
    [ ! -s "$out/$name/kl-relative.json" ] ||
        svg="$svg --relative-svg docs/pictures/relative-$name.svg"
    # shellcheck disable=SC2086 # an option with its value, or nothing
    "${PYTHON:-python3}" docs/pictures/tables.py "$out/$name" $svg > "$out/$name/tables.md"
}

all=niah_single_1,niah_multikey_2,niah_multikey_3,vt,niah_multivalue,niah_multiquery
four=niah_single_1,niah_multikey_2,niah_multikey_3,vt

# One stage of the bundled model, whose prompts take a second: every question has its own context.
demo() {
    case $1 in
    steps)
        $quality prompts --tasks niah_multikey_2,vt --lengths 4k --samples 10 --seed $seed \
            --tokenizer models/demo/tokenizer.json > "$out/demo/prompts.jsonl"
        set -- eval --model models/demo --threads "$threads" \
            --prompts "$out/demo/prompts.jsonl" --tokens 40
        "$kvahead" "$@" --json "$out/demo/kl-steps.json" --policies \
kivi:1,kivi:2,specache:1:64,specache:1:64:predictor=spec-token,specache:2:64,\
specache:2:64:predictor=spec-token,specache:2:64:predictor=spec-token:on_mispredict=chain,\
specache:2:64:predictor=prev-query,specache:2:64:predictor=prev-query:reselect_below=0 \
            > "$out/demo/steps.log" 2>&1
        "$kvahead" "$@" --policies kivi:2,specache:2:64,specache:2:64:predictor=spec-token \
            --svg docs/pictures/attended.svg > "$out/demo/attended.log" 2>&1
        "${PYTHON:-python3}" docs/pictures/tables.py "$out/demo" > "$out/demo/tables.md"
        return
        ;;
    esac
    start models/demo
    case $1 in
    policies) # Tables 1 and 4 of the paper: bits, with and without fetched rows, by predictor.
        ask ruler policies --lengths 4k,8k --tasks $all --samples "$samples" --policies \
full,kivi:1,kivi:2,specache:1:64,specache:1:256,specache:2:64,\
specache:1:64:predictor=spec-token,specache:2:64:predictor=spec-token,\
specache:1:64:predictor=spec-token:on_mispredict=chain,\
specache:2:64:predictor=spec-token:on_mispredict=chain,\
specache:1:64:predictor=prev-query:reselect_below=0,specache:1:64:paper=true
        ;;
    topk) # Figure 5.
        sweep=full
        for bits in 1 2; do
            sweep=$sweep,kivi:$bits
            for k in 16 32 64 128 256 512; do
                sweep=$sweep,specache:$bits:$k
            done
        done
        ask ruler topk --lengths 4k,8k --tasks $four --samples "$samples" --policies $sweep
        cp "$out/demo/topk/score_by_topk.svg" docs/pictures/
        ;;
    levels) # Table 5.
        ask ruler levels --lengths 4k,8k --tasks $four --samples "$samples" --policies \
full,kivi:1:levels=minmax,kivi:1:levels=mse,kivi:2:levels=minmax,kivi:2:levels=mse,\
specache:1:64:levels=minmax,specache:1:64:levels=mse,specache:2:64:levels=minmax,\
specache:2:64:levels=mse
        ;;
    needle) # Figure 4, by depth and length.
        ask needle needle --lengths 2k,4k,8k --depths 6 --samples 3 \
            --policies full,kivi:1,specache:1:64
        cp "$out/demo/needle/needle.svg" docs/pictures/
        ;;
    *) echo "make.sh: no stage $1 of demo" >&2 && exit 2 ;;
    esac
    unserve
}

# stages MODEL [STAGE ...]
stages() {
    name=$1
    shift
    mkdir -p "$out/$name"
    if [ "$name" = demo ]; then
        [ $# -gt 0 ] || set -- policies topk levels needle steps
        for stage; do demo "$stage"; done
    else
        [ $# -gt 0 ] || set -- prose code wikitext-2 deep weights kept kept-bits kept-budget ahead \
            beside long columns relative gap settings facts needles lists others rows alike grid
        for stage; do real "$stage"; done
    fi
}

if [ $# -gt 0 ]; then
    stages "$@"
else
    for each in smollm2-135m-instruct qwen2.5-coder-1.5b-instruct demo; do stages $each; done
fi
