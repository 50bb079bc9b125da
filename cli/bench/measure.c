/* measure.c - running steps and timing them. */
#include "cli/bench/bench.h"

#include "base/noise.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the decoding sequences beside a prefill, if the lists have as many and as deep. */
#define MIXED_BATCH 8u

/* Rows of a decoding sequence at most: its own and a speculative one. */
#define DECODE_ROWS 2u

/* Steps before the measured ones: caches, and what policies do once. */
#define WARM_STEPS 1u

/* Sequences that decode together. */
struct group {
    struct kva_bench *bench;
    const struct kva_kv_spec *spec;
    struct kva_sampling_params sampling;
    uint32_t depth;
    uint32_t distinct;
    uint32_t **prompts; /* [distinct] */
    struct kva_sequence **seqs;
    uint32_t seq_count;
    struct kva_step_item *items; /* [seq_count + 1] */
};

static const struct kva_engine_ops *ops_of(const struct kva_bench *bench)
{
    return bench->instance.engine->ops;
}

static void *self_of(const struct kva_bench *bench)
{
    return bench->instance.engine->self;
}

static const char *label_of(const struct kva_bench *bench, const struct kva_kv_spec *spec)
{
    return bench->labels[spec - bench->specs];
}

uint32_t kva_bench_sequences(const struct kva_bench *bench)
{
    uint32_t most = 1;
    for (uint32_t i = 0; i < bench->batch.count; i++)
        most = kva_max_u32(most, bench->batch.values[i]);
    return most;
}

uint32_t kva_bench_steps(const struct kva_bench *bench)
{
    uint32_t rows = bench->batch.count + 1;
    return rows * (WARM_STEPS + (uint32_t)bench->config->bench_repetitions);
}

/* Of one sequence, all steps included. */
static uint32_t tokens_of(const struct kva_bench *bench, uint32_t depth)
{
    return kva_max_u32(depth, 1) + kva_bench_steps(bench) + 1;
}

struct kva_bench_need kva_bench_need(const struct kva_bench *bench, const struct kva_kv_spec *spec,
                                     uint32_t depth)
{
    const struct kva_engine *engine = bench->instance.engine;
    uint32_t prompt = kva_max_u32(depth, 1), tokens = tokens_of(bench, depth);
    return (struct kva_bench_need){
        .own = kva_model_engine_footprint(engine, spec, prompt, tokens),
        .shared = kva_model_engine_footprint_shared(engine, spec, prompt, tokens),
    };
}

/* --- samples --------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A row of the tables; NULL: out of memory. */
static struct kva_bench_row *add_row(struct kva_bench *bench, const struct kva_bench_row *row)
{
    if (bench->row_count == bench->rows_max) {
        uint32_t more = 2 * bench->rows_max + 16;
        struct kva_bench_row *rows = realloc(bench->rows, more * sizeof(*rows));
        if (!rows)
            return NULL;
        bench->rows = rows;
        bench->rows_max = more;
    }
    struct kva_bench_row *added = &bench->rows[bench->row_count];
    *added = *row;
    added->samples_s = calloc(bench->config->bench_repetitions, sizeof(*added->samples_s));
    if (!added->samples_s)
        return NULL;
    bench->row_count++;
    return added;
}

static void add_sample(const struct kva_bench *bench, struct kva_bench_row *row, uint64_t start_ns)
{
    double seconds = (double)(bench->profile.now_ns() - start_ns) / 1e9;
    row->samples_s[row->sample_count++] = seconds;
    row->seconds += seconds;
}

static bool wants_more(const struct kva_bench *bench, const struct kva_bench_row *row)
{
    return row->sample_count < bench->config->bench_repetitions &&
           (row->sample_count == 0 ||
            row->seconds * 1000 < (double)bench->config->bench_row_time_ms);
}

static void start_counting(struct kva_bench *bench, struct kva_bench_row *row)
{
    struct kva_engine_usage usage;
    ops_of(bench)->usage(self_of(bench), &usage);
    row->counted = usage.counts;
    kva_profile_clear(&bench->profile);
}

static void end_counting(struct kva_bench *bench, struct kva_bench_row *row)
{
    struct kva_engine_usage usage;
    ops_of(bench)->usage(self_of(bench), &usage);
    kva_counts_since(&usage.counts, &row->counted);
    row->counted = usage.counts;
    row->used = usage.used;
    row->counts = bench->profile.counts;
    qsort(row->samples_s, row->sample_count, sizeof(*row->samples_s), compare);
}

/* --- sequences ------------------------------------------------------------------------------- */

static uint32_t *make_prompt(const struct kva_bench *bench, uint32_t tokens, uint64_t seed)
{
    uint32_t *prompt = malloc(tokens * sizeof(*prompt));
    uint32_t vocab = bench->instance.model->config.vocab_size;
    for (uint32_t i = 0; prompt && i < tokens; i++)
        prompt[i] = (uint32_t)(kva_noise_seed(seed, i) % vocab);
    return prompt;
}

static struct kva_sampling_params greedy(void)
{
    return (struct kva_sampling_params){
        .top_p = 1, .repetition_penalty = 1, .logprobs = -1, .prompt_logprobs = -1};
}

/* One more admitted sequence. */
static enum kva_status start(struct kva_bench *bench, const struct kva_sequence_params *params,
                             struct kva_sequence **ret, struct kva_err *err)
{
    struct kva_sequence *seq;
    uint32_t cached;
    enum kva_status status = ops_of(bench)->create(self_of(bench), params, &seq, err);
    if (status)
        return status;
    status = ops_of(bench)->admit(self_of(bench), seq, &cached, NULL, err);
    if (status)
        ops_of(bench)->destroy(self_of(bench), seq);
    else
        *ret = seq;
    return status;
}

static void group_finish(struct group *group)
{
    for (uint32_t i = 0; i < group->seq_count; i++)
        ops_of(group->bench)->destroy(self_of(group->bench), group->seqs[i]);
    for (uint32_t i = 0; group->prompts && i < group->distinct; i++)
        free(group->prompts[i]);
    free(group->prompts);
    free(group->seqs);
    free(group->items);
}

static enum kva_status group_add(struct group *group, uint32_t index, struct kva_err *err)
{
    struct kva_bench *bench = group->bench;
    uint32_t which = index % group->distinct;
    uint32_t tokens = kva_max_u32(group->depth, 1);
    uint64_t seed = kva_noise_seed(group->depth, which);
    if (!group->prompts[which])
        group->prompts[which] = make_prompt(bench, tokens, seed);
    if (!group->prompts[which])
        return kva_fail(err, KVA_ENOMEM, "out of memory for a prompt of %u tokens", tokens);
    const struct kva_sequence_params params = {
        .prompt = group->prompts[which],
        .prompt_tokens = tokens,
        .tokens_max = tokens_of(bench, group->depth),
        .sampling = &group->sampling,
        .kv = *group->spec,
    };
    struct kva_sequence *seq;
    enum kva_status status = start(bench, &params, &seq, err);
    if (status)
        return status;
    group->seqs[group->seq_count++] = seq;
    return kva_model_engine_fill(bench->instance.engine, seq, seed, err);
}

/* Sequences as the plan has them; those that the tiers have no room for after all are left out. */
static enum kva_status group_init(struct group *group, const struct kva_bench_group *plan,
                                  struct kva_err *err)
{
    group->sampling = greedy();
    group->distinct = plan->distinct;
    group->prompts = calloc(plan->distinct, sizeof(*group->prompts));
    group->seqs = calloc(plan->sequences, sizeof(*group->seqs));
    group->items = calloc(plan->sequences + 1u, sizeof(*group->items));
    if (!group->prompts || !group->seqs || !group->items)
        return kva_fail(err, KVA_ENOMEM, "out of memory for %u sequences", plan->sequences);
    for (uint32_t i = 0; i < plan->sequences; i++) {
        enum kva_status status = group_add(group, i, err);
        if (status == KVA_ELIMIT && i > 0)
            return KVA_OK;
        if (status)
            return status;
    }
    return KVA_OK;
}

/* A step of the first `batch` sequences, and of a prompt with a quota if there is one. */
static enum kva_status step(struct group *group, uint32_t batch, struct kva_sequence *prompt,
                            uint32_t quota, struct kva_err *err)
{
    const struct kva_bench *bench = group->bench;
    memset(group->items, 0, (batch + 1u) * sizeof(*group->items));
    for (uint32_t i = 0; i < batch; i++) {
        enum kva_status status = ops_of(bench)->grow(self_of(bench), group->seqs[i], err);
        if (status)
            return status;
        group->items[i].seq = group->seqs[i];
    }
    group->items[batch] = (struct kva_step_item){.seq = prompt, .prefill_tokens = quota};
    uint32_t count = batch + (prompt != NULL);
    enum kva_status status = ops_of(bench)->step(self_of(bench), group->items, count, err);
    for (uint32_t i = 0; !status && i < count; i++) {
        if (group->items[i].status)
            status = kva_fail(err, group->items[i].status, "a sequence failed in a step: %s",
                              kva_status_info(group->items[i].status)->name);
    }
    return status;
}

/* Tokens that the last step gave: sequences that pre-decode give none. */
static uint32_t emitted(const struct group *group, uint32_t batch)
{
    uint32_t tokens = 0;
    for (uint32_t i = 0; i < batch; i++)
        tokens += group->items[i].emitted;
    return tokens;
}

/* --- what is measured ------------------------------------------------------------------------ */

static enum kva_status measure_decode(struct group *group, struct kva_bench_row *row,
                                      struct kva_err *err)
{
    enum kva_status status = KVA_OK;
    for (uint32_t i = 0; !status && i < WARM_STEPS; i++)
        status = step(group, row->batch, NULL, 0, err);
    start_counting(group->bench, row);
    while (!status && wants_more(group->bench, row)) {
        uint64_t start_ns = group->bench->profile.now_ns();
        status = step(group, row->batch, NULL, 0, err);
        add_sample(group->bench, row, start_ns);
        row->decoded_tokens += emitted(group, row->batch);
    }
    end_counting(group->bench, row);
    return status;
}

static enum kva_status start_prompt(const struct group *group, const uint32_t *prompt,
                                    uint32_t tokens, struct kva_sequence **ret, struct kva_err *err)
{
    const struct kva_sequence_params params = {
        .prompt = prompt,
        .prompt_tokens = tokens,
        .tokens_max = tokens + 1,
        .sampling = &group->sampling,
        .kv = *group->spec,
        .cache_disabled = true,
    };
    return start(group->bench, &params, ret, err);
}

/* Prompts one after the other, a quota of each step, beside the decoding ones. */
static enum kva_status measure_mixed(struct group *group, struct kva_bench_row *row,
                                     const uint32_t *prompt, struct kva_err *err)
{
    struct kva_bench *bench = group->bench;
    uint32_t step_tokens = bench->instance.engine->limits.step_tokens_max;
    uint32_t quota = (uint32_t)(step_tokens * bench->config->prefill_share / 100);
    quota = kva_max_u32(kva_min_u32(quota, step_tokens - DECODE_ROWS * row->batch), 1);
    enum kva_status status = step(group, row->batch, NULL, 0, err);
    struct kva_sequence *seq = NULL;
    start_counting(bench, row);
    while (!status && wants_more(bench, row)) {
        if (!seq)
            status = start_prompt(group, prompt, row->prompt_tokens, &seq, err);
        if (status)
            break;
        uint64_t start_ns = bench->profile.now_ns();
        status = step(group, row->batch, seq, quota, err);
        add_sample(bench, row, start_ns);
        row->decoded_tokens += emitted(group, row->batch);
        row->prefilled_tokens += group->items[row->batch].prefill_done;
        if (group->items[row->batch].emitted) {
            ops_of(bench)->destroy(self_of(bench), seq);
            seq = NULL;
        }
    }
    end_counting(bench, row);
    ops_of(bench)->destroy(self_of(bench), seq);
    return status;
}

static enum kva_status prefill_once(struct group *group, const uint32_t *prompt, uint32_t tokens,
                                    struct kva_err *err)
{
    struct kva_bench *bench = group->bench;
    uint32_t quota = bench->instance.engine->limits.step_tokens_max;
    struct kva_sequence *seq = NULL;
    enum kva_status status = start_prompt(group, prompt, tokens, &seq, err);
    while (!status && !group->items[0].emitted)
        status = step(group, 0, seq, quota, err);
    group->items[0].emitted = false;
    ops_of(bench)->destroy(self_of(bench), seq);
    return status;
}

static enum kva_status measure_prefill(struct group *group, struct kva_bench_row *row,
                                       const uint32_t *prompt, struct kva_err *err)
{
    enum kva_status status = KVA_OK;
    start_counting(group->bench, row);
    while (!status && wants_more(group->bench, row)) {
        uint64_t start_ns = group->bench->profile.now_ns();
        status = prefill_once(group, prompt, row->prompt_tokens, err);
        add_sample(group->bench, row, start_ns);
        row->prefilled_tokens += row->prompt_tokens;
    }
    end_counting(group->bench, row);
    return status;
}

/* --- rows ------------------------------------------------------------------------------------ */

/* Not having room is a row's result, anything else is the bench's failure, and the row says why it
 * has no figure. */
static enum kva_status close_row(struct kva_bench *bench, struct kva_bench_row *row,
                                 enum kva_status status, kva_bench_row_fn done, struct kva_err *err)
{
    if (status == KVA_ELIMIT || status == KVA_EINVAL) {
        snprintf(row->skipped, sizeof(row->skipped), "%s", err->message);
        status = KVA_OK;
    }
    if (status)
        snprintf(row->skipped, sizeof(row->skipped), "failed: %.500s", err->message);
    else
        done(bench, row);
    return status;
}

static enum kva_status run_prefills(struct kva_bench *bench, const struct kva_kv_spec *spec,
                                    kva_bench_row_fn done, struct kva_err *err)
{
    struct kva_step_item items[1] = {{0}};
    struct group group = {.bench = bench, .spec = spec, .sampling = greedy(), .items = items};
    enum kva_status status = KVA_OK;
    for (uint32_t i = 0; !status && i < bench->prefill.count; i++) {
        uint32_t tokens = bench->prefill.values[i];
        const struct kva_bench_row blank = {
            .kind = KVA_BENCH_PREFILL, .policy = label_of(bench, spec), .prompt_tokens = tokens};
        struct kva_bench_row *row = add_row(bench, &blank);
        uint32_t *prompt = make_prompt(bench, tokens, 1);
        if (!row || !prompt)
            status = kva_fail(err, KVA_ENOMEM, "out of memory for a prompt of %u tokens", tokens);
        if (!status)
            status = close_row(bench, row, measure_prefill(&group, row, prompt, err), done, err);
        free(prompt);
    }
    return status;
}

static enum kva_status run_mixed(struct group *group, kva_bench_row_fn done, struct kva_err *err)
{
    struct kva_bench *bench = group->bench;
    uint32_t tokens = bench->prefill.values[bench->prefill.count - 1];
    const struct kva_bench_row blank = {
        .kind = KVA_BENCH_MIXED,
        .policy = label_of(bench, group->spec),
        .prompt_tokens = tokens,
        .batch = kva_min_u32(MIXED_BATCH, group->seq_count),
        .depth = group->depth,
        .distinct = kva_min_u32(group->distinct, kva_min_u32(MIXED_BATCH, group->seq_count)),
    };
    struct kva_bench_row *row = add_row(bench, &blank);
    uint32_t *prompt = make_prompt(bench, tokens, 1);
    enum kva_status status =
        row && prompt ? close_row(bench, row, measure_mixed(group, row, prompt, err), done, err)
                      : kva_fail(err, KVA_ENOMEM, "out of memory for a row");
    free(prompt);
    return status;
}

/* Why a batch at this depth has no figure. */
static void explain(const struct kva_bench *bench, const struct group *group, uint32_t batch,
                    char *text, size_t size)
{
    const struct kva_bench_need need = kva_bench_need(bench, group->spec, group->depth);
    const double mib = 1 << 20;
    uint32_t tokens = tokens_of(bench, group->depth);
    uint32_t context = bench->instance.engine->limits.context_max;
    if (tokens > context)
        snprintf(text, size, "%u tokens with the steps; the context is %u", tokens, context);
    else
        snprintf(
            text, size,
            "of %u sequences %u fit: each takes %.0f MiB of the device tier (%.0f) and %.0f of "
            "the host tier (%.0f), %.0f beside an equal one (%.0f in all)",
            batch, group->seq_count, (double)need.own.device / mib,
            (double)bench->memory.device / mib, (double)need.own.host / mib,
            (double)bench->memory.host / mib, (double)(need.shared.device + need.shared.host) / mib,
            (double)bench->memory.total / mib);
}

static enum kva_status run_batches(struct group *group, kva_bench_row_fn done, struct kva_err *err)
{
    struct kva_bench *bench = group->bench;
    enum kva_status status = KVA_OK;
    for (uint32_t i = 0; !status && i < bench->batch.count; i++) {
        uint32_t batch = bench->batch.values[i];
        const struct kva_bench_row blank = {
            .kind = KVA_BENCH_DECODE,
            .policy = label_of(bench, group->spec),
            .batch = batch,
            .depth = group->depth,
            .distinct = kva_min_u32(batch, group->distinct),
        };
        struct kva_bench_row *row = add_row(bench, &blank);
        if (!row)
            return kva_fail(err, KVA_ENOMEM, "out of memory for a row");
        if (batch > group->seq_count) {
            explain(bench, group, batch, row->skipped, sizeof(row->skipped));
            done(bench, row);
        } else {
            status = close_row(bench, row, measure_decode(group, row, err), done, err);
        }
    }
    return status;
}

static enum kva_status run_depth(struct kva_bench *bench, const struct kva_kv_spec *spec,
                                 uint32_t depth, bool mixed, kva_bench_row_fn done,
                                 struct kva_err *err)
{
    struct group group = {.bench = bench, .spec = spec, .depth = depth};
    const struct kva_bench_need need = kva_bench_need(bench, spec, depth);
    struct kva_bench_group plan = kva_bench_plan(&bench->memory, &need, kva_bench_sequences(bench));
    /* Nothing is admitted of what does not fit; the rows say so. */
    if (tokens_of(bench, depth) > bench->instance.engine->limits.context_max)
        plan.sequences = 0;
    enum kva_status status = plan.sequences ? group_init(&group, &plan, err) : KVA_OK;
    if (status == KVA_ELIMIT)
        status = KVA_OK;
    if (!status)
        status = run_batches(&group, done, err);
    if (!status && mixed && group.seq_count > 0)
        status = run_mixed(&group, done, err);
    group_finish(&group);
    return status;
}

/* The depth beside which prompts are prefilled: the first that is not 0. */
static uint32_t mixed_depth(const struct kva_bench *bench)
{
    for (uint32_t i = 0; i < bench->depth.count; i++)
        if (bench->depth.values[i] > 0)
            return i;
    return 0;
}

enum kva_status kva_bench_measure(struct kva_bench *bench, const struct kva_kv_spec *spec,
                                  kva_bench_row_fn done, struct kva_err *err)
{
    bool mixed = bench->config->bench_mixed && bench->prefill.count > 0;
    enum kva_status status = run_prefills(bench, spec, done, err);
    for (uint32_t i = 0; !status && bench->batch.count > 0 && i < bench->depth.count; i++)
        status = run_depth(bench, spec, bench->depth.values[i], mixed && i == mixed_depth(bench),
                           done, err);
    return status;
}
