/* measure.c - the constants of this machine and model by which plans are made (cost.h): what a step
 * takes by its rows, and a row by the tokens it attends to. */
#include "base/clock.h"
#include "base/log.h"
#include "cluster/node/node_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MAX     64u
#define ROW_POINTS   7u /* 1, 2, 4 .. ROWS_MAX */
#define WARM         1u
#define TIMED_MIN    3u
#define TIMED_MAX    7u /* as long as they are short: one of them is undisturbed */
#define ENOUGH_NS    (200 * KVA_NS_PER_MS)
#define POINT_NS     (400 * KVA_NS_PER_MS) /* a step that takes longer is the last */
#define ALL_NS       (3 * KVA_NS_PER_S)
#define DEPTH_TOKENS 4096u
#define SHORT_TOKENS 2u
#define STEPS_MAX    ((WARM + TIMED_MAX) * ROW_POINTS) /* of a sequence, which fits into a page */

_Static_assert(SHORT_TOKENS + STEPS_MAX < KVA_PAGE_TOKENS, "short sequences are of a page");
_Static_assert((1u << (ROW_POINTS - 1)) == ROWS_MAX && ROW_POINTS <= KVA_COST_POINTS_MAX, "points");

/* Sequences that decode together. */
struct group {
    struct kva_engine *engine;
    struct kva_sampling_params sampling;
    uint32_t *prompt;
    struct kva_sequence *seqs[ROWS_MAX];
    uint32_t count;
};

static enum kva_status add(struct group *g, uint32_t tokens, struct kva_err *err)
{
    const struct kva_engine_ops *ops = g->engine->ops;
    const struct kva_sequence_params params = {.prompt = g->prompt,
                                               .prompt_tokens = tokens,
                                               .tokens_max = tokens + STEPS_MAX + 1,
                                               .sampling = &g->sampling,
                                               .kv = kva_kv_spec_default(KVA_KV_FULL),
                                               .cache_disabled = true};
    struct kva_sequence *seq;
    uint32_t cached;
    enum kva_status status = ops->create(g->engine->self, &params, &seq, err);
    if (status)
        return status;
    status = ops->admit(g->engine->self, seq, &cached, NULL, err);
    if (!status)
        status = kva_model_engine_fill(g->engine, seq, g->count, err);
    if (status)
        ops->destroy(g->engine->self, seq);
    else
        g->seqs[g->count++] = seq;
    return status;
}

static void clear(struct group *g)
{
    while (g->count > 0)
        g->engine->ops->destroy(g->engine->self, g->seqs[--g->count]);
}

/* Seconds of the shortest of some steps. */
static enum kva_status time_steps(struct group *g, double *ret_s, struct kva_err *err)
{
    const struct kva_engine_ops *ops = g->engine->ops;
    struct kva_step_item items[ROWS_MAX];
    uint64_t least_ns = UINT64_MAX, first_ns = kva_time_ns();
    enum kva_status status = KVA_OK;
    for (uint32_t i = 0; i < WARM + TIMED_MAX && !status; i++) {
        uint64_t begin_ns = kva_time_ns();
        if (i >= WARM + TIMED_MIN && begin_ns - first_ns > ENOUGH_NS)
            break;
        for (uint32_t s = 0; s < g->count && !status; s++) {
            items[s] = (struct kva_step_item){.seq = g->seqs[s]};
            status = ops->grow(g->engine->self, g->seqs[s], err);
        }
        if (!status)
            status = ops->step(g->engine->self, items, g->count, err);
        uint64_t took_ns = kva_time_ns() - begin_ns;
        least_ns = i >= WARM && took_ns < least_ns ? took_ns : least_ns;
    }
    *ret_s = (double)least_ns / 1e9;
    return status;
}

/* Steps of 1, 2, 4 .. rows, as far as memory and patience go. */
static enum kva_status measure_rows(struct kva_node *node, struct group *g, struct kva_err *err)
{
    struct kva_cost_params *cost = &node->cost;
    uint64_t begin_ns = kva_time_ns();
    uint32_t most = kva_min_u32(node->running_max, ROWS_MAX);
    double took_s = 0;
    for (uint32_t rows = 1; rows <= most; rows *= 2) {
        enum kva_status status = KVA_OK;
        while (g->count < rows && !status)
            status = add(g, SHORT_TOKENS, err);
        if (status == KVA_ELIMIT && rows > 1)
            break;
        if (!status)
            status = time_steps(g, &took_s, err);
        if (status)
            return status;
        double layer_s = took_s / cost->layers;
        double before_s = cost->point_count > 0 ? cost->points[cost->point_count - 1].s : 0;
        cost->points[cost->point_count++] =
            (struct kva_cost_point){rows, layer_s > before_s ? layer_s : before_s};
        if (took_s * 1e9 > POINT_NS || kva_time_ns() - begin_ns > ALL_NS)
            break;
    }
    clear(g);
    return KVA_OK;
}

/* A long sequence's step, less a short one's. Half of the memory is enough. */
static enum kva_status measure_attention(struct kva_node *node, struct group *g,
                                         struct kva_err *err)
{
    struct kva_cost_params *cost = &node->cost;
    struct kva_engine_usage usage;
    g->engine->ops->usage(g->engine->self, &usage);
    uint64_t pages = usage.budget.device / 2 / node->page_bytes;
    uint64_t tokens = kva_min_size(pages * KVA_PAGE_TOKENS, DEPTH_TOKENS);
    tokens = kva_min_size(tokens, g->engine->limits.context_max / 2);
    double took_s = 0;
    enum kva_status status = add(g, (uint32_t)tokens, err);
    if (!status)
        status = time_steps(g, &took_s, err);
    clear(g);
    double longer_s = took_s - cost->layers * cost->points[0].s;
    /* No shorter than what memory could be read in: a step's noise is no rate. */
    double least_s = 1e-12;
    cost->attend_token_s = longer_s / (double)tokens / cost->layers;
    if (cost->attend_token_s < least_s)
        cost->attend_token_s = least_s;
    return status;
}

/* Who copies a page: the engine's thread for the mailbox, the cluster's for the link, the kernel for
 * the network; and these share cores and memory. */
#define PAGE_COPIES 3

/* Pages that are copied in a step, on average, at least: a loan has to come about. */
#define STEP_PAGES_MIN 0.02

/* What it takes to send a page. A copy of it is timed as two of what is in a cache, where a page is
 * not. */
static enum kva_status measure_copy(struct kva_node *node, struct kva_err *err)
{
    unsigned char *from = calloc(1, node->page_bytes), *to = calloc(1, node->page_bytes);
    uint64_t least_ns = UINT64_MAX;
    for (uint32_t i = 0; from && to && i < WARM + TIMED_MAX; i++) {
        uint64_t begin_ns = kva_time_ns();
        memcpy(to, from, node->page_bytes);
        memcpy(from, to, node->page_bytes);
        uint64_t took_ns = kva_time_ns() - begin_ns;
        least_ns = took_ns < least_ns ? took_ns : least_ns;
    }
    bool fits = from && to;
    free(from);
    free(to);
    node->copy_page_s = PAGE_COPIES * (double)least_ns / 1e9;
    return fits ? KVA_OK : kva_fail(err, KVA_ENOMEM, "out of memory for a page");
}

double kva_node_step_pages(const struct kva_node *node)
{
    const double copy_s =
        node->params.copy_percent / 100.0 * node->cost.layers * node->cost.points[0].s;
    const double pages = node->copy_page_s > 0 ? copy_s / node->copy_page_s : 1;
    return fmin(fmax(pages, STEP_PAGES_MIN), node->unacked_pages);
}

static void say(const struct kva_node *node)
{
    const struct kva_cost_params *cost = &node->cost;
    char steps[256] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < cost->point_count && used < sizeof(steps); i++) {
        int written = snprintf(steps + used, sizeof(steps) - used, "%s%u %.2f", i > 0 ? ", " : "",
                               cost->points[i].rows, cost->points[i].s * cost->layers * 1e3);
        used += written > 0 ? (size_t)written : 0;
    }
    kva_log(KVA_LOG_INFO,
            "cluster       steps by rows, ms: %s; 1,000 tokens of a row %.3f ms; a page %.3f ms",
            steps, cost->attend_token_s * cost->layers * 1e6, node->copy_page_s * 1e3);
}

enum kva_status kva_node_measure(struct kva_node *node, struct kva_err *err)
{
    const struct kva_model_config *c = &node->params.model->config;
    struct group g = {
        .engine = node->engine,
        .sampling = {.top_p = 1, .repetition_penalty = 1, .logprobs = -1, .prompt_logprobs = -1}};
    g.prompt = calloc(DEPTH_TOKENS, sizeof(*g.prompt));
    if (!g.prompt)
        return kva_fail(err, KVA_ENOMEM, "out of memory for measuring");
    for (uint32_t i = 0; i < DEPTH_TOKENS; i++)
        g.prompt[i] = i % c->vocab_size;
    node->cost = (struct kva_cost_params){
        .layers = c->layer_count,
        .query_bytes = (uint32_t)(c->heads * c->head_dim * sizeof(float)),
        .partial_bytes = (uint32_t)(c->heads * (c->head_dim + 2) * sizeof(float)),
        .page_bytes = node->page_bytes,
    };
    enum kva_status status = measure_rows(node, &g, err);
    if (!status)
        status = measure_attention(node, &g, err);
    if (!status)
        status = measure_copy(node, err);
    clear(&g);
    free(g.prompt);
    if (status)
        return status;
    say(node);
    return KVA_OK;
}
