/* parity.c - the engine on the CUDA device against the engine on the CPU.
 *
 *     parity --module PATH [--seed N] [--prompt TOKENS] [--output TOKENS] [--trained] [--layers N]
 *         [--policy NAME]... MODEL...
 *
 * With --policy, only those and `full`. With --layers, a model that is not there is made, with so
 * many layers: those of families have two, and a step of many is cut into pieces of several
 * (kernels/cuda/step.cu).
 *
 * For each model and KV policy: the log-probability of every token of a prompt (the model sees the
 * same tokens on both), then greedy decoding until the two part, which they may only where the best
 * two tokens are close. On the GPU alone, policies that only move pages must give the same bits as
 * the one that does not, and the same run the same bits, whether steps are graphs or not.
 *
 * No test library: this runs on GPU machines that have none. */
#include "engine/model/skew.h"
#include "engine/model/synthetic.h"
#include "engine/model_engine.h"
#include "engine/planes.h"
#include "engine/sampler.h"
#include "tests/cuda/mutations.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TOKENS_MAX 4096

/* Of the columns: those of partial keys, and of the query weights that planes read. */
#define PARTIAL_PERCENT 30u

struct setup {
    struct kva_device *device;
    struct kva_model *model;
    struct kva_engine *engine;
};

struct run {
    uint32_t prompt[TOKENS_MAX];
    uint32_t prompt_tokens, output_tokens;
    struct kva_kv_spec kv;
    bool tokens_only; /* no log-probabilities: nothing but the best token leaves the device */
    bool sampled;     /* with temperature and penalties */
    bool all_logits;  /* come to the host, and are what tokens are drawn by */
};

struct trace {
    float prompt[TOKENS_MAX]; /* log-probability of prompt token i + 1 */
    uint32_t tokens[TOKENS_MAX];
    float chosen[TOKENS_MAX];
    float lead[TOKENS_MAX]; /* of the best token over the second */
    /* Of the step with fewest calls, in a simulation only: calls to the driver; kernels in graphs, and
     * as many of these as come one behind the other. */
    uint64_t calls, nodes, chains;
};

static int failures;
static bool trained;           /* --trained */
static uint32_t wanted;        /* --policy: a bit each; 0: all */
static const uint64_t *counts; /* of a simulation (simt_control); NULL: a real GPU */

enum {
    COUNT_CALLS = 5,
    COUNT_NODES = 7,
    COUNT_CHAINS = 8,
};

static uint64_t count_of(int which)
{
    return counts ? counts[which] : 0;
}

/* Of a step, before which the counts were these. */
static void note_counts(struct trace *trace, uint64_t calls, uint64_t nodes, uint64_t chains)
{
    const uint64_t own = count_of(COUNT_CALLS) - calls;
    if (trace->calls > 0 && own >= trace->calls)
        return;
    trace->calls = own;
    trace->nodes = count_of(COUNT_NODES) - nodes;
    trace->chains = count_of(COUNT_CHAINS) - chains;
}

static void expect_ok(enum kva_status status, const struct kva_err *err, const char *what)
{
    if (status == KVA_OK)
        return;
    printf("FAILED %s: %s\n", what, err->message);
    exit(1);
}

static bool has_planes(const struct kva_model *model)
{
    return kva_planes_bytes(model, PARTIAL_PERCENT) > 0;
}

/* A skew that turns nothing; which columns matter is drawn. */
static void give_skew(struct kva_model *model)
{
    const struct kva_model_config *c = &model->config;
    struct kva_err err = {0};
    struct kva_skew *skew;
    expect_ok(kva_skew_create(c->layer_count, c->kv_heads, c->head_dim, &skew, &err), &err, "skew");
    for (uint32_t i = 0; i < c->layer_count * c->kv_heads * c->head_dim; i++) {
        skew->energy[i] = (float)(i * 37 % 101);
        skew->basis[(size_t)i * c->head_dim + i % c->head_dim] = 1;
    }
    kva_skew_sort(skew);
    model->skew = skew;
}

/* `module` NULL: on the CPU. */
static void open_setup(struct setup *setup, const char *module, const char *path,
                       enum kva_dtype act, enum kva_dtype kv_dtype, bool direct)
{
    struct kva_err err = {0};
    const struct kva_model_open_params open = {.path = path};
    expect_ok(kva_model_open(&open, &setup->model, &err), &err, path);
    give_skew(setup->model);
    const struct kva_device_params device = {
        .act = act, .cpu_level_mask = KVA_CPU_REF, .gpu_direct = direct};
    expect_ok(module ? kva_device_open_cuda(module, &device, &setup->device, &err)
                     : kva_device_open_cpu(&device, &setup->device, &err),
              &err, "open");
    const struct kva_model_engine_params engine = {
        .device = setup->device,
        .model = setup->model,
        .budget = {128ull << 20, 128ull << 20},
        .sequences_max = 4,
        .step_tokens_max = 256,
        .kv_dtype = kv_dtype,
        .planes_percent = has_planes(setup->model) ? PARTIAL_PERCENT : 0,
    };
    expect_ok(kva_model_engine_create(&engine, &setup->engine, &err), &err, "engine");
}

static void close_setup(struct setup *setup)
{
    kva_model_engine_destroy(setup->engine);
    kva_device_close(setup->device);
    kva_model_close(setup->model);
}

static struct kva_sequence *start(struct setup *setup, const struct run *run,
                                  const struct kva_sampling_params *sampling)
{
    struct kva_err err = {0};
    struct kva_sequence *seq;
    uint32_t cached;
    const struct kva_sequence_params params = {
        .prompt = run->prompt,
        .prompt_tokens = run->prompt_tokens,
        .tokens_max = run->prompt_tokens + run->output_tokens,
        .sampling = sampling,
        .kv = run->kv,
        .cache_disabled = true,
    };
    expect_ok(setup->engine->ops->create(setup->engine->self, &params, &seq, &err), &err, "create");
    expect_ok(setup->engine->ops->admit(setup->engine->self, seq, &cached, NULL, &err), &err,
              "admit");
    return seq;
}

static struct kva_sampling_params sampling_of(const struct run *run)
{
    struct kva_sampling_params sampling = {
        .top_p = 1, .repetition_penalty = 1, .logprobs = 2, .prompt_logprobs = 0};
    if (run->tokens_only)
        sampling.logprobs = sampling.prompt_logprobs = -1;
    if (run->sampled) {
        sampling.temperature = 0.8f;
        sampling.top_p = 0.95f;
        sampling.repetition_penalty = 1.2f;
        sampling.presence_penalty = 0.5f;
        sampling.seed = 7;
    }
    return sampling;
}

/* Run sequences side by side to their end; traces[i] is runs[i]'s. */
static void run_all(struct setup *setup, const struct run *const *runs, struct trace **traces,
                    uint32_t count)
{
    struct kva_engine *engine = setup->engine;
    struct kva_err err = {0};
    struct kva_sampling_params sampling[4];
    struct kva_sequence *seqs[4];
    uint32_t done[4] = {0};
    float *logits = malloc(setup->model->config.vocab_size * sizeof(float));
    for (uint32_t i = 0; i < count; i++) {
        sampling[i] = sampling_of(runs[i]);
        seqs[i] = start(setup, runs[i], &sampling[i]);
    }
    for (;;) {
        struct kva_step_item items[4] = {0};
        uint32_t members[4], active = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (done[i] == runs[i]->output_tokens)
                continue;
            if (done[i] > 0)
                expect_ok(engine->ops->grow(engine->self, seqs[i], &err), &err, "grow");
            members[active] = i;
            items[active++] =
                (struct kva_step_item){.seq = seqs[i],
                                       .prefill_tokens = done[i] > 0 ? 0 : 256 / count,
                                       .logits = runs[i]->all_logits ? logits : NULL};
        }
        if (active == 0)
            break;
        const uint64_t calls = count_of(COUNT_CALLS), nodes = count_of(COUNT_NODES);
        const uint64_t chains = count_of(COUNT_CHAINS);
        expect_ok(engine->ops->step(engine->self, items, active, &err), &err, "step");
        if (done[members[0]] > 0 && done[members[0]] + 1 < runs[members[0]]->output_tokens)
            note_counts(traces[members[0]], calls, nodes, chains);
        for (uint32_t j = 0; j < active; j++) {
            uint32_t i = members[j];
            if (!items[j].emitted)
                continue;
            traces[i]->tokens[done[i]] = items[j].token.token;
            traces[i]->chosen[done[i]] = items[j].token.chosen.logprob;
            traces[i]->lead[done[i]++] =
                items[j].token.top[0].logprob - items[j].token.top[1].logprob;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct kva_prompt_logprob *prompt =
            engine->ops->prompt_logprobs(engine->self, seqs[i]);
        for (uint32_t j = 0; prompt && j + 1 < runs[i]->prompt_tokens; j++)
            traces[i]->prompt[j] = prompt[j].actual.logprob;
        engine->ops->destroy(engine->self, seqs[i]);
    }
    free(logits);
}

static struct trace *run_one(struct setup *setup, const struct run *run)
{
    struct trace *trace = calloc(1, sizeof *trace);
    run_all(setup, &run, &trace, 1);
    return trace;
}

/* --- comparing -------------------------------------------------------------------------------- */

/* How far log-probabilities may be apart in the mean: activations are rounded after every operator,
 * keys, values and probabilities to 16 bits. Single ones may be ten times as far.
 *
 * Of a model that was trained logits are larger, and what rounding does to one grows with it: there
 * that is for tokens as probable as those of a uniform draw, and one in a hundred may be fifty times
 * as far, since it hangs on one head's one choice. */
static float tolerance(enum kva_dtype act, const struct run *run)
{
    float base = act == KVA_F32 ? 0.003f : act == KVA_F16 ? 0.02f : 0.12f;
    /* A rounding decides over codes and over what is fetched, too. */
    return kva_kv_policy_exact(run->kv.policy) ? base : base + 0.05f;
}

struct distance {
    double mean, most;
    double at;    /* the log-probability that is the most apart */
    uint32_t far; /* how many are more than ten times `limit` apart */
};

/* `uniform`: the log-probability of a uniform draw, without its sign. */
static struct distance distance_of(const float *want, const float *got, uint32_t count,
                                   double uniform, float limit)
{
    struct distance distance = {0, 0, 0, 0};
    for (uint32_t i = 0; i < count; i++) {
        double d = fabs((double)want[i] - (double)got[i]);
        if (trained)
            d /= fmax(1, -(double)want[i] / uniform);
        distance.mean += d / count;
        distance.far += !(d <= 10 * limit);
        if (d > distance.most || isnan(d)) {
            distance.most = d;
            distance.at = want[i];
        }
    }
    return distance;
}

static bool near_enough(const struct distance *distance, uint32_t count, float limit)
{
    return distance->mean <= limit && distance->most <= (trained ? 50 : 10) * limit &&
           distance->far <= (trained ? count / 100 : 0);
}

static void compare(const char *name, enum kva_dtype act, const struct run *run, double uniform,
                    const struct trace *want, const struct trace *got)
{
    float limit = tolerance(act, run);
    uint32_t same = 0;
    while (same < run->output_tokens && want->tokens[same] == got->tokens[same])
        same++;
    struct distance prompt =
        distance_of(want->prompt, got->prompt, run->prompt_tokens - 1, uniform, limit);
    struct distance output = distance_of(want->chosen, got->chosen, same, uniform, limit);
    /* A forecast by whole planes may bring other rows altogether. */
    const float lead_most = (run->kv.skew == KVA_SKEW_PLANES ? 20 : 10) * limit;
    bool close = same == run->output_tokens || want->lead[same] <= lead_most;
    bool good = near_enough(&prompt, run->prompt_tokens - 1, limit) &&
                near_enough(&output, same, limit) && close;
    printf("%s %-50s prompt %.4f (%.3f at %.1f) output %.4f (%.3f) apart, %u of %u tokens",
           good ? "PASS" : "FAIL", name, prompt.mean, prompt.most, prompt.at, output.mean,
           output.most, same, run->output_tokens);
    if (same < run->output_tokens)
        printf(", then another that leads by %.3f", want->lead[same]);
    printf("\n");
    failures += !good;
}

static void expect_same(const char *name, const struct run *run, const struct trace *a,
                        const struct trace *b, bool bits)
{
    bool good = memcmp(a->tokens, b->tokens, run->output_tokens * sizeof a->tokens[0]) == 0;
    if (bits)
        good = good && memcmp(a->chosen, b->chosen, sizeof a->chosen) == 0 &&
               memcmp(a->prompt, b->prompt, sizeof a->prompt) == 0;
    printf("%s %s\n", good ? "PASS" : "FAIL", name);
    failures += !good;
}

static void fill_run(struct run *run, const struct kva_model *model, uint64_t seed)
{
    uint32_t vocab = model->config.vocab_size;
    for (uint32_t i = 0; i < run->prompt_tokens; i++)
        run->prompt[i] = (uint32_t)(kva_sampler_uniform(seed, i) * vocab);
}

/* What is compared: every policy, KIVI with more bits of values than of keys, SpeCache by its other
 * predictors, Q-Hitter with rows as they are, and InfiniGen by a prompt's own columns, and by whole
 * planes. */
static const struct variant {
    const char *name; /* NULL: the policy's */
    enum kva_kv_policy_id policy;
    enum kva_kv_predictor predictor;
    enum kva_kv_coding coding;
    enum kva_kv_columns columns;
    bool planes;
    uint32_t value_bits;
} variants[] = {
    {.policy = KVA_KV_FULL},
    {.policy = KVA_KV_OFFLOAD},
    {.policy = KVA_KV_STREAMING},
    {.policy = KVA_KV_KIVI},
    {"kivi 1, values of 2", .policy = KVA_KV_KIVI, .value_bits = 2},
    {.policy = KVA_KV_SPECACHE},
    {"specache prev-query", .policy = KVA_KV_SPECACHE, .predictor = KVA_PREDICT_PREV_QUERY},
    {"specache sync", .policy = KVA_KV_SPECACHE, .predictor = KVA_PREDICT_SYNC},
    {.policy = KVA_KV_H2O},
    {.policy = KVA_KV_QHITTER},
    {"q-hitter, plain", .policy = KVA_KV_QHITTER, .coding = KVA_KV_CODING_PLAIN},
    {.policy = KVA_KV_INFINIGEN},
    {"infinigen, own columns", .policy = KVA_KV_INFINIGEN, .columns = KVA_COLUMNS_PROMPT},
    {"infinigen, planes", .policy = KVA_KV_INFINIGEN, .planes = true},
};

/* false: there is no such policy. */
static bool want(const char *name)
{
    const enum kva_kv_policy_id policy = kva_kv_policy_find(name);
    if (policy == KVA_KV_POLICY_COUNT)
        return false;
    wanted |= 1u << policy | 1u << KVA_KV_FULL;
    return true;
}

static bool is_wanted(enum kva_kv_policy_id policy)
{
    return wanted == 0 || wanted >> policy & 1;
}

/* A slot of a store has no place in a sliding window, and a part of a query no norm: such models are
 * refused. */
static bool fits(const struct variant *variant, const struct kva_model *model)
{
    const struct kva_model_config *config = &model->config;
    if (variant->planes && !has_planes(model))
        return false;
    bool stores = variant->policy == KVA_KV_H2O || variant->policy == KVA_KV_QHITTER;
    for (uint32_t i = 0; stores && i < config->layer_count; i++) {
        if (config->layer_window[i] > 0)
            return false;
    }
    return true;
}

/* Tokens are drawn on the host by what the device lists: the same as by all logits. */
static void check_sampling(struct setup *setup, const struct run *greedy, const char *what)
{
    struct run run = *greedy;
    char name[200];
    run.sampled = true;
    run.kv = kva_kv_spec_default(KVA_KV_FULL);
    struct trace *listed = run_one(setup, &run);
    run.all_logits = true;
    struct trace *all = run_one(setup, &run);
    struct distance distance = distance_of(listed->chosen, all->chosen, run.output_tokens, 1, 0);
    snprintf(name, sizeof name, "%.100s, sampled by lists and by all logits, %.1e apart", what,
             distance.most);
    expect_same(name, &run, listed, all, false);
    if (!(distance.most < 1e-5)) {
        printf("FAIL %s: log-probabilities\n", name);
        failures++;
    }
    free(listed);
    free(all);
}

/* Steps were graphs, more often than graphs were made. */
static void report_steps(const struct kva_device *device)
{
    struct kva_device_steps steps;
    kva_device_get_steps(device, &steps);
    bool good = steps.launched > steps.captured && steps.captured > 0;
    printf("%s %llu steps as graphs, %llu made, %llu kernels set anew; %llu steps call by call\n",
           good ? "PASS" : "FAIL", (unsigned long long)steps.launched,
           (unsigned long long)steps.captured, (unsigned long long)steps.updated,
           (unsigned long long)steps.replayed);
    failures += !good;
}

/* The last part of a path, whatever it ends with. */
static const char *name_of(const char *path)
{
    const char *end = path + strlen(path);
    while (end > path && end[-1] == '/')
        end--;
    while (end > path && end[-1] != '/')
        end--;
    return end;
}

static void check_model(const char *module, const char *path, enum kva_dtype act,
                        uint32_t prompt_tokens, uint32_t output_tokens, uint64_t seed)
{
    struct setup cpu, gpu, direct;
    struct trace *base = NULL;
    struct run *run = calloc(1, sizeof *run);
    char name[200];
    /* With F32 activations F16 keys and values are the only rounding: a sharper comparison. */
    enum kva_dtype kv_dtype = act == KVA_F32 ? KVA_F16 : KVA_F32;
    open_setup(&cpu, NULL, path, KVA_F32, kv_dtype, false);
    open_setup(&gpu, module, path, act, kv_dtype, false);
    open_setup(&direct, module, path, act, kv_dtype, true);
    uint32_t context = cpu.engine->limits.context_max;
    run->output_tokens = kva_min_u32(output_tokens, context / 4);
    run->prompt_tokens = kva_min_u32(prompt_tokens, context - run->output_tokens);
    fill_run(run, cpu.model, seed);
    char tail[41] = "";
    snprintf(tail, sizeof tail, "%s", name_of(path));
    tail[strcspn(tail, "/")] = 0;
    for (size_t i = 0; i < KVA_COUNT_OF(variants); i++) {
        const struct variant *variant = &variants[i];
        const char *what = variant->name ? variant->name : kva_kv_policy_name(variant->policy);
        if (!is_wanted(variant->policy) || !fits(variant, cpu.model))
            continue;
        run->kv = kva_kv_spec_default(variant->policy);
        run->kv.predictor = variant->predictor;
        run->kv.columns = variant->columns;
        run->kv.coding = variant->coding;
        run->kv.value_bits = variant->value_bits;
        run->kv.bits = variant->value_bits ? 1 : run->kv.bits;
        run->kv.min_tokens = 0; /* low bits from the first page on */
        run->kv.window = kva_min_u32(run->kv.window, 64);
        run->kv.partial = PARTIAL_PERCENT;
        run->kv.skew = variant->planes ? KVA_SKEW_PLANES : KVA_SKEW_NONE;
        run->kv.skip_layers = 1;
        run->kv.k = 16; /* a choice, also where a prompt has a page or two */
        snprintf(name, sizeof name, "%.40s, %s, %s", tail, what, kva_dtype_name(act));
        struct trace *want = run_one(&cpu, run), *got = run_one(&gpu, run);
        compare(name, act, run, log(cpu.model->config.vocab_size), want, got);
        if (variant->policy == KVA_KV_FULL)
            base = got;
        else if (kva_kv_policy_exact(variant->policy)) {
            snprintf(name, sizeof name, "%.40s, %s is bit for bit what full is", tail, what);
            expect_same(name, run, base, got, true);
        }
        /* Twice the same, with nothing left over from before. */
        struct trace *again = run_one(&gpu, run);
        snprintf(name, sizeof name, "%.40s, %s, again", tail, what);
        expect_same(name, run, got, again, true);
        free(again);
        run->tokens_only = true;
        again = run_one(&gpu, run);
        run->tokens_only = false;
        snprintf(name, sizeof name, "%.40s, %s, tokens alone", tail, what);
        expect_same(name, run, got, again, false);
        free(again);
        again = run_one(&direct, run);
        snprintf(
            name, sizeof name,
            "%.40s, %s, without graphs: a step has %llu calls, with them %llu for %llu kernels, "
            "%llu one behind the other",
            tail, what, (unsigned long long)again->calls, (unsigned long long)got->calls,
            (unsigned long long)got->nodes, (unsigned long long)got->chains);
        expect_same(name, run, got, again, true);
        free(again);
        free(want);
        if (got != base)
            free(got);
    }
    snprintf(name, sizeof name, "%.40s, %s", tail, kva_dtype_name(act));
    check_sampling(&gpu, run, name);
    snprintf(name, sizeof name, "%.40s, on the CPU", tail);
    check_sampling(&cpu, run, name);
    report_steps(gpu.device);
    free(base);
    free(run);
    close_setup(&cpu);
    close_setup(&gpu);
    close_setup(&direct);
}

static void make_model(const char *path, uint32_t layers)
{
    char config[512];
    snprintf(config, sizeof config, "%s/config.json", path);
    if (layers == 0 || access(config, R_OK) == 0)
        return;
    struct kva_err err = {0};
    struct kva_synthetic_info info;
    const struct kva_synthetic_params params = {.dir_path = path,
                                                .config_json = kva_shape_config("tiny"),
                                                .seed = 7,
                                                .layer_count = layers};
    expect_ok(kva_synthetic_write(&params, &info, &err), &err, path);
}

static enum kva_dtype model_format(const char *path)
{
    struct kva_err err = {0};
    struct kva_model *model;
    const struct kva_model_open_params open = {.path = path};
    expect_ok(kva_model_open(&open, &model, &err), &err, path);
    enum kva_dtype dtype = model->config.dtype;
    kva_model_close(model);
    return dtype;
}

int main(int argc, char **argv)
{
    const char *module = NULL;
    uint32_t prompt_tokens = 150, output_tokens = 24, layers = 0, models = 0;
    uint64_t seed = 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--module") == 0 && i + 1 < argc) {
            module = argv[++i];
            struct simt_control simt;
            bool simulated = simt_open(&simt, module);
            if (simulated)
                simt.set_seed(seed);
            counts = simulated ? simt.counts : NULL;
        } else if (strcmp(argv[i], "--prompt") == 0 && i + 1 < argc) {
            prompt_tokens = kva_min_u32((uint32_t)strtoul(argv[++i], NULL, 10), TOKENS_MAX);
        } else if (strcmp(argv[i], "--output") == 0 && i + 1 < argc) {
            output_tokens = kva_min_u32((uint32_t)strtoul(argv[++i], NULL, 10), TOKENS_MAX);
        } else if (strcmp(argv[i], "--trained") == 0) {
            trained = true;
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            seed = strtoull(argv[++i], NULL, 0);
        } else if (strcmp(argv[i], "--layers") == 0 && i + 1 < argc) {
            layers = (uint32_t)strtoul(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--policy") == 0 && i + 1 < argc && want(argv[i + 1])) {
            i++;
        } else if (module && argv[i][0] != '-') {
            make_model(argv[i], layers);
            enum kva_dtype act = model_format(argv[i]);
            check_model(module, argv[i], KVA_F32, prompt_tokens, output_tokens, seed);
            if (act != KVA_F32)
                check_model(module, argv[i], act, prompt_tokens, output_tokens, seed);
            models++;
        } else {
            models = 0;
            break;
        }
    }
    if (models == 0) {
        fprintf(
            stderr,
            "usage: %s --module PATH [--seed N] [--prompt TOKENS] [--output TOKENS] [--trained] "
            "[--layers N] [--policy NAME]... MODEL...\n",
            argv[0]);
        return 2;
    }
    printf("%u models, %d failed\n", models, failures);
    return failures ? 1 : 0;
}
