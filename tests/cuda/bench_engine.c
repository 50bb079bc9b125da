/* bench_engine.c - whole steps and prompts on a GPU beside what its ceilings allow.
 *
 *     bench_engine --predict
 *     bench_engine --module PATH --models DIR [--layers N] [--seconds S] [--small] [--serial]
 *                  [--only ROW]
 *
 * --predict: no GPU; ceilings as published for an H200. Else a model of Mistral-7B's shape with N
 * layers (8) is made below DIR and measured: the batch is the one that all 32 layers would have
 * within the budget, so that a layer's time is that of the whole model and host memory is a
 * quarter. Measured tokens per second are for 32 layers: the layers' time times 32 / N, the head's
 * once.
 * --only: of the batches, those whose row begins so ("24 | 32768 | specache 1"), and what their steps
 * did besides; nothing else ("one": the sequence alone). For a profiler, too.
 * --serial: no kernel is launched before the one ahead of it has ended.
 * --small: a tiny model and short sequences, to try the program; its figures mean nothing. */
#include "base/clock.h"
#include "engine/model/synthetic.h"
#include "engine/model_engine.h"
#include "tests/cuda/forecast.h"
#include "tests/median.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WARM_STEPS    4u
#define STEPS_MAX     40u
#define ROW_NS        (1500 * KVA_NS_PER_MS)
#define SEQUENCES_MAX 512u

/* 132 multiprocessors at 1.8 GHz. */
static const struct ceilings h200 = {4.3e12, 50e9, 790e12, 132 * 1.8e9};
static const double budgets_gib[] = {24, 48};
static const uint32_t lengths[] = {32768, 8192, 2048};

struct bench {
    const char *module, *models;
    uint32_t layers;
    uint64_t deadline_ns;
    bool small;
    bool strange; /* every token is another */
    bool serial;  /* kernels wait for each other's end */
    const char *only;
    struct ceilings ceilings;
    struct shape whole; /* of the prediction: 32 layers */
    struct shape shape; /* of the model measured */
    struct kva_device *device;
    struct kva_model *model;
    struct kva_engine *engine;
};

static void expect_ok(enum kva_status status, const struct kva_err *err)
{
    if (status == KVA_OK)
        return;
    printf("FAILED: %s\n", err->message);
    exit(1);
}

/* --- measuring -------------------------------------------------------------------------------- */

static void make_model(struct bench *bench, char *dir, size_t size)
{
    struct kva_err err = {0};
    snprintf(dir, size, "%s/%s-%u", bench->models, bench->small ? "tiny" : "mistral-7b",
             bench->layers);
    char config[512];
    snprintf(config, sizeof config, "%s/config.json", dir);
    if (access(config, R_OK) == 0)
        return;
    (void)mkdir(bench->models, 0777); /* the model's own is made below it */
    struct kva_synthetic_info info;
    const struct kva_synthetic_params params = {
        .dir_path = dir,
        .config_json = kva_shape_config(bench->small ? "tiny" : "mistral-7b"),
        .seed = 1,
        .layer_count = bench->layers,
    };
    uint64_t start_ns = kva_time_ns();
    expect_ok(kva_synthetic_write(&params, &info, &err), &err);
    printf("%s: made in %.1f s\n", dir, (double)(kva_time_ns() - start_ns) * 1e-9);
}

static void open_engine(struct bench *bench)
{
    struct kva_err err = {0};
    struct kva_device_roofs roofs;
    char dir[400];
    make_model(bench, dir, sizeof dir);
    const struct kva_model_open_params open = {.path = dir};
    const struct kva_device_params device = {.act = KVA_BF16, .gpu_serial = bench->serial};
    expect_ok(kva_model_open(&open, &bench->model, &err), &err);
    expect_ok(kva_device_open_cuda(bench->module, &device, &bench->device, &err), &err);
    expect_ok(kva_device_measure(bench->device, &roofs, &err), &err);
    bench->ceilings = (struct ceilings){roofs.read_bytes_per_s, roofs.copy_bytes_per_s,
                                        roofs.bf16_flops_per_s, h200.cycles_per_s};
    const struct kva_model_config *c = &bench->model->config;
    bench->shape = (struct shape){"",       c->layer_count, c->hidden_size, c->intermediate_size,
                                  c->heads, c->kv_heads,    c->head_dim,    c->vocab_size};
    bench->whole = bench->shape;
    bench->whole.layers = bench->small ? bench->layers : 32;
    double part = (double)bench->shape.layers / bench->whole.layers;
    const struct kva_model_engine_params engine = {
        .device = bench->device,
        .model = bench->model,
        .budget = {bench->small ? 64u << 20 : (uint64_t)(42e9 * part),
                   bench->small ? 128u << 20 : (uint64_t)((HOST_BYTES + 4e9) * part)},
        .sequences_max = bench->small ? 8 : SEQUENCES_MAX,
        .step_tokens_max = bench->small ? 256 : 2048,
        .context_max = bench->small ? 1024 : 33000,
    };
    expect_ok(kva_model_engine_create(&engine, &bench->engine, &err), &err);
    printf("%s\n", kva_device_get_info(bench->device)->name);
}

static void close_engine(struct bench *bench)
{
    kva_model_engine_destroy(bench->engine);
    kva_device_close(bench->device);
    kva_model_close(bench->model);
}

static bool is_coded(const struct case_of_kv *kv)
{
    return kv->kind == KV_KIVI || kv->kind == KV_SPECACHE || kv->kind == KV_PREVIOUS ||
           kv->kind == KV_QHITTER;
}

static struct kva_kv_spec spec_of(const struct case_of_kv *kv)
{
    static const enum kva_kv_policy_id policies[] = {
        [KV_FULL] = KVA_KV_FULL,         [KV_KIVI] = KVA_KV_KIVI,
        [KV_SPECACHE] = KVA_KV_SPECACHE, [KV_PREVIOUS] = KVA_KV_SPECACHE,
        [KV_OFFLOAD] = KVA_KV_OFFLOAD,   [KV_AHEAD] = KVA_KV_INFINIGEN,
        [KV_H2O] = KVA_KV_H2O,           [KV_QHITTER] = KVA_KV_QHITTER};
    struct kva_kv_spec spec = kva_kv_spec_default(policies[kv->kind]);
    spec.bits = is_coded(kv) ? kv->bits : spec.bits;
    spec.alpha = 1000; /* of noise as many rows as there may be */
    spec.cap = kv->rows > 0 ? kv->rows : spec.cap;
    spec.skew = KVA_SKEW_NONE;
    spec.min_tokens = 0; /* low bits, however short */
    /* As the forecast has it: two rows a step. Of random weights every speculative token is wrong,
     * and would cost a pass of its own if it were followed by a pre-decoding. */
    spec.predictor = kv->kind == KV_PREVIOUS ? KVA_PREDICT_PREV_QUERY : KVA_PREDICT_SPEC_TOKEN;
    spec.on_mispredict = KVA_MISPREDICT_CHAIN;
    return spec;
}

static const struct kva_sampling_params greedy = {
    .top_p = 1, .repetition_penalty = 1, .logprobs = -1, .prompt_logprobs = -1};

/* The same token in every step: queries turn by what positions turn them, and most of what a step
 * chooses is there from the one before, as with real models. Of other tokens random weights make
 * queries that have nothing in common, and nearly all rows have to come. */
static const struct kva_logit_bias one_token = {.token = 7, .bias = 100};
static const struct kva_sampling_params steady = {.top_p = 1,
                                                  .repetition_penalty = 1,
                                                  .logit_bias = &one_token,
                                                  .logit_bias_count = 1,
                                                  .logprobs = -1,
                                                  .prompt_logprobs = -1};

/* A sequence of `tokens` tokens, filled or with its prompt still to be read; NULL: no room. */
static struct kva_sequence *start(struct bench *bench, const struct case_of_kv *kv,
                                  const uint32_t *prompt, uint32_t tokens, uint64_t seed, bool fill)
{
    const struct kva_engine_ops *ops = bench->engine->ops;
    struct kva_err err = {0};
    struct kva_sequence *seq;
    uint32_t cached;
    const struct kva_sequence_params params = {
        .prompt = prompt,
        .prompt_tokens = tokens,
        .tokens_max = tokens + (fill ? WARM_STEPS + STEPS_MAX + 1 : 1),
        .sampling = bench->strange ? &greedy : &steady,
        .kv = spec_of(kv),
        .cache_disabled = true,
    };
    expect_ok(ops->create(bench->engine->self, &params, &seq, &err), &err);
    if (ops->admit(bench->engine->self, seq, &cached, NULL, &err)) {
        ops->destroy(bench->engine->self, seq);
        return NULL;
    }
    if (fill)
        expect_ok(kva_model_engine_fill(bench->engine, seq, seed, &err), &err);
    return seq;
}

static double step_once(struct bench *bench, struct kva_sequence *const *seqs,
                        struct kva_step_item *items, uint32_t count)
{
    const struct kva_engine_ops *ops = bench->engine->ops;
    struct kva_err err = {0};
    for (uint32_t i = 0; i < count; i++) {
        expect_ok(ops->grow(bench->engine->self, seqs[i], &err), &err);
        items[i] = (struct kva_step_item){.seq = seqs[i]};
    }
    uint64_t start_ns = kva_time_ns();
    expect_ok(ops->step(bench->engine->self, items, count, &err), &err);
    return (double)(kva_time_ns() - start_ns) * 1e-9;
}

struct measured {
    double step_s;    /* median; 0: not measured */
    double fetched_s; /* bytes fetched in a step, by the link's rate */
    double came;      /* of the chosen rows those that were not there, percent; 0: none chosen */
};

static void print_steps(struct bench *bench, const struct measured *m)
{
    struct kva_device_steps steps;
    kva_device_get_steps(bench->device, &steps);
    printf(
        "a step of %u layers: %.2f ms, in which %.2f ms of rows come; so far %llu as graphs (%llu "
        "made, %llu kernels set anew), %llu call by call\n",
        bench->shape.layers, m->step_s * 1e3, m->fetched_s * 1e3,
        (unsigned long long)steps.launched, (unsigned long long)steps.captured,
        (unsigned long long)steps.updated, (unsigned long long)steps.replayed);
}

/* What a counter has counted in between. */
static double counted(const struct kva_engine_usage *before, const struct kva_engine_usage *after,
                      const char *name)
{
    return (double)(kva_counts_named(&after->counts, name) -
                    kva_counts_named(&before->counts, name));
}

/* Decoding steps of `count` sequences. */
static struct measured measure(struct bench *bench, const struct case_of_kv *kv, uint32_t count)
{
    const struct kva_engine_ops *ops = bench->engine->ops;
    struct kva_sequence *seqs[SEQUENCES_MAX];
    static struct kva_step_item items[SEQUENCES_MAX];
    double samples[STEPS_MAX];
    uint32_t *prompt = calloc(kv->tokens, sizeof *prompt), made = 0, steps = 0;
    struct measured measured = {0};
    while (prompt && made < count && kva_time_ns() < bench->deadline_ns) {
        seqs[made] = start(bench, kv, prompt, kv->tokens, made + 1, true);
        if (!seqs[made])
            break;
        made++;
    }
    struct kva_engine_usage before, after;
    if (made == count) {
        for (uint32_t i = 0; i < WARM_STEPS; i++)
            (void)step_once(bench, seqs, items, count);
        ops->usage(bench->engine->self, &before);
        uint64_t start_ns = kva_time_ns();
        while (steps < STEPS_MAX && (steps < 3 || kva_time_ns() - start_ns < ROW_NS))
            samples[steps++] = step_once(bench, seqs, items, count);
        ops->usage(bench->engine->self, &after);
        kva_test_sort(samples, steps);
        measured.step_s = samples[steps / 2];
        measured.fetched_s =
            counted(&before, &after, "fetched_bytes") / steps / bench->ceilings.link_bytes_per_s;
        const double missed = counted(&before, &after, "fetch_rows_missed");
        const double hit = counted(&before, &after, "fetch_rows_hit");
        measured.came = missed > 0 ? 100 * missed / (missed + hit) : 0;
    }
    for (uint32_t i = 0; i < made; i++)
        ops->destroy(bench->engine->self, seqs[i]);
    free(prompt);
    if (bench->only)
        print_steps(bench, &measured);
    return measured;
}

/* A step of the whole model, from one of fewer layers. */
static double whole_step(const struct bench *bench, const struct forecast *part, double step_s)
{
    double layers = (double)bench->whole.layers / bench->shape.layers;
    double head_s = part->head_s < step_s ? part->head_s : step_s;
    return (step_s - head_s) * layers + head_s;
}

/* Seconds of a prompt, in steps as large as the engine takes them; 0: no room. */
static double measure_prefill(struct bench *bench, uint32_t tokens)
{
    const struct case_of_kv kv = {KV_SPECACHE, 2, tokens, 0};
    const struct kva_engine_ops *ops = bench->engine->ops;
    uint32_t *prompt = calloc(tokens, sizeof *prompt);
    double best = 0;
    for (int run = 0; prompt && run < 2; run++) {
        struct kva_err err = {0};
        struct kva_sequence *seq = start(bench, &kv, prompt, tokens, 1, false);
        if (!seq)
            break;
        struct kva_step_item item = {0};
        uint64_t start_ns = kva_time_ns();
        do {
            item = (struct kva_step_item){.seq = seq,
                                          .prefill_tokens = bench->engine->limits.step_tokens_max};
            expect_ok(ops->step(bench->engine->self, &item, 1, &err), &err);
        } while (!item.emitted);
        double seconds = (double)(kva_time_ns() - start_ns) * 1e-9;
        best = best == 0 || seconds < best ? seconds : best;
        ops->destroy(bench->engine->self, seq);
    }
    free(prompt);
    return best;
}

/* --- tables ----------------------------------------------------------------------------------- */

/* "-" where nothing was measured. */
static const char *figure(char *to, const char *format, double x)
{
    if (x > 0)
        snprintf(to, 24, format, x);
    else
        strcpy(to, "-");
    return to;
}

/* Tokens per second of the aim over `full`; 0: none. */
static double aim_of(double budget_gib, uint32_t tokens, uint32_t bits)
{
    if (budget_gib < 40)
        return tokens == 32768 ? (bits == 1 ? 10 : 6) : 0;
    return tokens == 32768  ? (bits == 1 ? 5.5 : 4)
           : tokens == 8192 ? (bits == 1 ? 5 : 4)
                            : (bits == 1 ? 2.5 : 2);
}

/* One row; returns measured tokens per second, `*predicted` the roof's. */
static double print_row(struct bench *bench, double budget_gib, const struct case_of_kv *kv,
                        double full_roof, double full_measured, double *predicted)
{
    static const char *const names[] = {"full",    "kivi",      "specache", "prev-query",
                                        "offload", "infinigen", "h2o",      "q-hitter"};
    struct batch batch = forecast_batch(&bench->whole, kv, budget_gib * 0x1p30);
    if (bench->small)
        batch.sequences = 2;
    char name[24], aim[24], tokens_per_s[24], times[24], share[24], came[24];
    snprintf(name, sizeof name,
             is_coded(kv)   ? "%s %u bit"
             : kv->rows > 0 ? "%s, %u rows"
                            : "%s",
             names[kv->kind], is_coded(kv) ? kv->bits : kv->rows);
    char row[64];
    snprintf(row, sizeof row, "%.0f | %u | %s", budget_gib, kv->tokens, name);
    *predicted = 0;
    if (bench->only && strncmp(row, bench->only, strlen(bench->only)) != 0)
        return 0;
    if (batch.sequences == 0) {
        printf("| %.0f | %u | %s | 0 | card | - | - | - | - | - | - | - | - | - | - |\n",
               budget_gib, kv->tokens, name);
        return 0;
    }
    struct forecast roof = forecast_step(&bench->whole, &bench->ceilings, kv, batch.sequences);
    *predicted = batch.sequences / roof.step_s;
    double measured = 0, of_roof = 0, came_percent = 0;
    if (bench->engine && batch.sequences <= SEQUENCES_MAX) {
        struct forecast part = forecast_step(&bench->shape, &bench->ceilings, kv, batch.sequences);
        struct measured m = measure(bench, kv, batch.sequences);
        if (m.step_s > 0) {
            measured = batch.sequences / whole_step(bench, &part, m.step_s);
            of_roof = 100 * part.step_s / m.step_s;
            came_percent = m.came;
        }
    }
    double wanted =
        !is_coded(kv) || kv->kind == KV_QHITTER ? 0 : aim_of(budget_gib, kv->tokens, kv->bits);
    printf(
        "| %.0f | %u | %s | %u | %s | %.2f | %.0f | %.1f | %s | %s | %s | %s | %s | %.2f | %s |\n",
        budget_gib, kv->tokens, name, batch.sequences, forecast_limit(&batch, &roof),
        roof.step_s * 1e3, *predicted, full_roof > 0 ? *predicted / full_roof : 1,
        figure(aim, "%.1f", wanted), figure(tokens_per_s, "%.0f", measured),
        figure(times, "%.1f", full_measured > 0 ? measured / full_measured : 0),
        figure(share, "%.0f%%", of_roof), figure(came, "%.0f%%", came_percent), roof.bound_s * 1e3,
        forecast_binds(&roof));
    return measured;
}

/* Tokens per second of `full`, by budget and length. */
struct full_speed {
    double roof, measured;
};

static void print_head(void)
{
    printf(
        "| GiB | tokens | policy | batch | limit | roof, ms a step | roof, tokens/s | x full | aim "
        "| measured, tokens/s | x full | of roof | rows that came | with own work, ms | most of it |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
}

static uint32_t budgets_of(const struct bench *bench)
{
    return bench->small ? 1 : KVA_COUNT_OF(budgets_gib);
}

static uint32_t lengths_of(const struct bench *bench)
{
    return bench->small ? 1 : KVA_COUNT_OF(lengths);
}

/* `full` and SpeCache at every length. */
static void print_batches(struct bench *bench, struct full_speed (*full)[KVA_COUNT_OF(lengths)],
                          size_t b)
{
    printf("\nTokens/s at the largest batch that fits (roof / measured)\n\n");
    print_head();
    for (size_t i = 0; i < lengths_of(bench); i++) {
        uint32_t tokens = bench->small ? 256 : lengths[i];
        struct full_speed *speed = &full[b][i];
        double roof;
        struct case_of_kv kv = {KV_FULL, 16, tokens, 0};
        speed->measured = print_row(bench, budgets_gib[b], &kv, 0, 0, &speed->roof);
        for (uint32_t bits = 1; bits <= 2; bits++) {
            kv = (struct case_of_kv){KV_SPECACHE, bits, tokens, 0};
            (void)print_row(bench, budgets_gib[b], &kv, speed->roof, speed->measured, &roof);
        }
    }
}

/* SpeCache with 1 bit where nearly all rows have to come. */
static void print_strange(struct bench *bench, struct full_speed (*full)[KVA_COUNT_OF(lengths)])
{
    printf("\nThe same, every token another\n\n");
    print_head();
    bench->strange = true;
    for (size_t i = 0; i < lengths_of(bench); i++) {
        double roof;
        const struct case_of_kv kv = {KV_SPECACHE, 1, bench->small ? 256 : lengths[i], 0};
        (void)print_row(bench, budgets_gib[0], &kv, full[0][i].roof, full[0][i].measured, &roof);
    }
    bench->strange = false;
}

/* SpeCache by the query before, which needs no second row. */
static void print_previous(struct bench *bench, struct full_speed (*full)[KVA_COUNT_OF(lengths)])
{
    printf("\nThe same, specache with predictor=prev-query\n\n");
    print_head();
    for (size_t i = 0; i < lengths_of(bench); i++) {
        for (uint32_t bits = 1; bits <= 2; bits++) {
            double roof;
            const struct case_of_kv kv = {KV_PREVIOUS, bits, bench->small ? 256 : lengths[i], 0};
            (void)print_row(bench, budgets_gib[0], &kv, full[0][i].roof, full[0][i].measured,
                            &roof);
        }
    }
}

/* Policies that keep a fifth of the tokens. */
static void print_keeping(struct bench *bench, struct full_speed (*full)[KVA_COUNT_OF(lengths)])
{
    printf("\nThe same, policies that drop tokens\n\n");
    print_head();
    for (size_t i = 0; i < lengths_of(bench); i++) {
        const uint32_t tokens = bench->small ? 256 : lengths[i];
        const struct case_of_kv kvs[] = {{KV_H2O, 16, tokens, 0}, {KV_QHITTER, 4, tokens, 0}};
        double roof;
        for (size_t j = 0; j < KVA_COUNT_OF(kvs); j++)
            (void)print_row(bench, budgets_gib[0], &kvs[j], full[0][i].roof, full[0][i].measured,
                            &roof);
    }
}

/* Policies that bring much over the link. */
static void print_bringing(struct bench *bench, struct full_speed (*full)[KVA_COUNT_OF(lengths)])
{
    printf("\nThe same, policies that bring much over the link\n\n");
    print_head();
    for (size_t b = 0; b < budgets_of(bench); b++) {
        for (size_t i = 0; i < lengths_of(bench); i++) {
            uint32_t tokens = bench->small ? 256 : lengths[i];
            const struct case_of_kv kvs[] = {
                {KV_AHEAD, 16, tokens, 64}, {KV_AHEAD, 16, tokens, 0}, {KV_OFFLOAD, 16, tokens, 0}};
            double roof;
            for (size_t j = 0; j < KVA_COUNT_OF(kvs); j++)
                (void)print_row(bench, budgets_gib[b], &kvs[j], full[b][i].roof,
                                full[b][i].measured, &roof);
        }
    }
}

/* SpeCache's step against KIVI's with as many sequences: what fetching costs. */
static void print_hidden(struct bench *bench)
{
    printf(
        "\nSpeCache's step over KIVI's at the same batch\n\n"
        "| tokens | bits | batch | fetch, ms | beside, ms | roof | with own work | aim | measured "
        "| fetched, ms |\n|---|---|---|---|---|---|---|---|---|---|\n");
    for (uint32_t bits = 1; bits <= 2; bits++) {
        struct case_of_kv spec = {KV_SPECACHE, bits, bench->small ? 256 : 32768, 0}, kivi = spec;
        kivi.kind = KV_KIVI;
        struct batch batch = forecast_batch(&bench->whole, &spec, 48 * 0x1p30);
        uint32_t count = bench->small ? 2 : batch.sequences;
        struct forecast a = forecast_step(&bench->whole, &bench->ceilings, &spec, count);
        struct forecast b = forecast_step(&bench->whole, &bench->ceilings, &kivi, count);
        struct measured ma = {0}, mb = {0};
        if (bench->engine) {
            ma = measure(bench, &spec, count);
            mb = measure(bench, &kivi, count);
        }
        char times[24], fetched[24];
        printf("| %u | %u | %u | %.2f | %.2f | %.2f | %.2f | 1.05 | %s | %s |\n", spec.tokens, bits,
               count, a.link_s * 1e3, (a.linear_s + a.attend_s) * 1e3, a.step_s / b.step_s,
               a.bound_s / b.bound_s,
               figure(times, "%.2f", mb.step_s > 0 ? ma.step_s / mb.step_s : 0),
               figure(fetched, "%.2f",
                      ma.fetched_s * 1e3 * bench->whole.layers /
                          (bench->engine ? bench->shape.layers : 1)));
    }
}

static void print_single(struct bench *bench)
{
    const struct case_of_kv kv = {KV_FULL, 16, bench->small ? 64 : 128, 0};
    struct forecast roof = forecast_step(&bench->whole, &bench->ceilings, &kv, 1);
    struct measured m = {0};
    char ms[24], share[24];
    if (bench->engine)
        m = measure(bench, &kv, 1);
    double whole = 0, of_roof = 0;
    if (m.step_s > 0) {
        struct forecast part = forecast_step(&bench->shape, &bench->ceilings, &kv, 1);
        whole = whole_step(bench, &part, m.step_s);
        of_roof = 100 * part.step_s / m.step_s;
    }
    printf("\n| one sequence | roof, ms | with own work, ms | aim | measured, ms | of roof |\n"
           "|---|---|---|---|---|---|\n"
           "| decode, full, %u tokens | %.2f | %.2f | 85%% | %s | %s |\n",
           kv.tokens, roof.step_s * 1e3, roof.bound_s * 1e3, figure(ms, "%.2f", whole * 1e3),
           figure(share, "%.0f%%", of_roof));
    uint32_t tokens = bench->small ? 300 : 32768;
    double prefill = forecast_prefill(&bench->whole, &bench->ceilings, tokens);
    double took = bench->engine ? measure_prefill(bench, tokens) : 0;
    double layers = (double)bench->whole.layers / (bench->engine ? bench->shape.layers : 32);
    printf("| prefill of %u | %.0f | | 60%% | %s | %s |\n", tokens, prefill * 1e3,
           figure(ms, "%.0f", took * layers * 1e3),
           figure(share, "%.0f%%", took > 0 ? 100 * prefill / (took * layers) : 0));
}

int main(int argc, char **argv)
{
    struct bench bench = {.layers = 8, .whole = shape_mistral, .ceilings = h200};
    bool predict = false;
    uint64_t seconds = 240;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--module") == 0 && i + 1 < argc)
            bench.module = argv[++i];
        else if (strcmp(argv[i], "--models") == 0 && i + 1 < argc)
            bench.models = argv[++i];
        else if (strcmp(argv[i], "--layers") == 0 && i + 1 < argc)
            bench.layers = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
            seconds = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--small") == 0)
            bench.small = true;
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            bench.only = argv[++i];
        else if (strcmp(argv[i], "--serial") == 0)
            bench.serial = true;
        else if (strcmp(argv[i], "--predict") == 0)
            predict = true;
    }
    if (!predict && (!bench.module || !bench.models || bench.layers == 0)) {
        fprintf(stderr, "usage: %s --predict | --module PATH --models DIR [--layers N]\n", argv[0]);
        return 2;
    }
    bench.deadline_ns = kva_time_ns() + seconds * KVA_NS_PER_S;
    if (bench.small)
        bench.layers = 2;
    if (!predict)
        open_engine(&bench);
    printf("ceilings (%s): memory %.0f GB/s, link %.1f GB/s, products %.1f TFLOP/s\n",
           predict ? "published for an H200" : "measured", bench.ceilings.memory_bytes_per_s * 1e-9,
           bench.ceilings.link_bytes_per_s * 1e-9, bench.ceilings.flops_per_s * 1e-12);
    if (!bench.only || strcmp(bench.only, "one") == 0)
        print_single(&bench);
    if (!bench.only)
        print_hidden(&bench);
    struct full_speed full[KVA_COUNT_OF(budgets_gib)][KVA_COUNT_OF(lengths)];
    print_batches(&bench, full, 0);
    print_previous(&bench, full);
    print_keeping(&bench, full);
    if (!bench.only)
        print_strange(&bench, full);
    if (budgets_of(&bench) > 1)
        print_batches(&bench, full, 1);
    print_bringing(&bench, full);
    if (!predict)
        close_engine(&bench);
    return 0;
}
