/* calibrate.c - windows as prompts, under full KV, with an observer. */
#include "engine/calibrate/calibrate.h"

#include "engine/calibrate/bring.h"
#include "engine/calibrate/directions.h"
#include "engine/calibrate/eigen.h"
#include "engine/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A window in which queries see far enough. */
#define WINDOW_TOKENS_MIN 128u

struct run {
    const struct kva_calibrate_params *params;
    struct kva_calibration *result;
    struct kva_pool *pool;
    struct kva_bring *bring;
    struct kva_look *look; /* NULL: rows are added up */
    uint64_t done, total;  /* tokens */
};

/* --- a window --------------------------------------------------------------------------------- */

static void see(void *opaque, const struct kva_forward_layer_view *device_view)
{
    struct run *run = opaque;
    if (!run->look && device_view->point != KVA_POINT_QUERIES)
        return;
    const struct kva_forward_layer_view view = kva_bring_view(run->bring, device_view);
    if (run->look)
        kva_look_at(run->look, &view);
    else
        kva_gram_add(run->result->gram, run->pool, view.layer, view.q, view.k, view.rows);
}

static enum kva_status step(struct run *run, struct kva_step_item *item, struct kva_err *err)
{
    const struct kva_engine *engine = run->params->engine;
    enum kva_status status = kva_model_check_cancelled(run->params->cancelled, err);
    if (!status)
        status = engine->ops->step(engine->self, item, 1, err);
    if (!status && item->status)
        status = kva_fail(err, item->status, "the model's logits are not numbers");
    run->done += status ? 0 : item->prefill_done;
    if (!status && run->params->progress)
        run->params->progress(run->params->progress_opaque, run->done, run->total);
    return status;
}

static enum kva_status run_window(struct run *run, const uint32_t *ids, struct kva_err *err)
{
    const struct kva_calibrate_params *p = run->params;
    const struct kva_engine *engine = p->engine;
    const struct kva_sampling_params sampling = {
        .top_p = 1, .repetition_penalty = 1, .logprobs = -1, .prompt_logprobs = -1};
    const struct kva_sequence_params params = {
        .prompt = ids,
        .prompt_tokens = p->window_tokens,
        .tokens_max = p->window_tokens + 1,
        .sampling = &sampling,
        .kv = kva_kv_spec_default(KVA_KV_FULL),
        .cache_disabled = true,
    };
    const struct kva_forward_observer observer = {.layer = see, .opaque = run};
    struct kva_step_item item = {.prefill_tokens = engine->limits.step_tokens_max, .forced = true};
    uint32_t cached;
    enum kva_status status = engine->ops->create(engine->self, &params, &item.seq, err);
    if (!status)
        status = engine->ops->admit(engine->self, item.seq, &cached, NULL, err);
    kva_model_engine_observe(p->engine, &observer);
    while (!status && !item.emitted)
        status = step(run, &item, err);
    kva_model_engine_observe(p->engine, NULL);
    engine->ops->destroy(engine->self, item.seq);
    return status;
}

static enum kva_status run_windows(struct run *run, uint32_t first, uint32_t end,
                                   struct kva_err *err)
{
    const struct kva_calibrate_params *p = run->params;
    enum kva_status status = KVA_OK;
    for (uint32_t i = first; i < end && !status; i++)
        status = run_window(run, p->ids + (size_t)i * p->window_tokens, err);
    return status ? status : kva_model_check(p->model, err);
}

/* --- which directions ------------------------------------------------------------------------- */

double kva_calibration_recall(const struct kva_calibration *c, enum kva_look_basis basis,
                              enum kva_look_query query, enum kva_look_candidates candidates,
                              uint32_t first)
{
    double sum = 0;
    uint32_t layers = 0;
    for (uint32_t i = first; i < c->layer_count; i++) {
        const struct kva_look_found *found = &c->layers[i].found[basis][query][candidates];
        if (found->count == 0)
            continue;
        sum += found->recall / (double)found->count;
        layers++;
    }
    return layers > 0 ? sum / layers : (double)NAN;
}

/* By rehearsed queries, or the layers' own where nothing was rehearsed: in a model of one layer, and
 * where the host cannot run the operators. */
static void choose(struct kva_calibration *c)
{
    double best = -1;
    for (uint32_t i = 0; i < KVA_SKEW_METHOD_COUNT; i++) {
        const enum kva_look_basis basis = kva_look_basis_of((enum kva_skew_method)i);
        double recall = kva_calibration_recall(c, basis, KVA_LOOK_REHEARSED, KVA_LOOK_AWAY, 0);
        if (isnan(recall))
            recall = kva_calibration_recall(c, basis, KVA_LOOK_OWN, KVA_LOOK_AWAY, 0);
        if (i > 0 && !(recall > best))
            continue;
        best = recall;
        c->skew = c->skews[i];
    }
}

static enum kva_status find_directions(struct run *run, struct kva_err *err)
{
    struct kva_calibration *c = run->result;
    enum kva_status status = KVA_OK;
    for (uint32_t i = 0; i < KVA_SKEW_METHOD_COUNT && !status; i++) {
        status = kva_directions_find(c->gram, (enum kva_skew_method)i, run->params->device,
                                     run->pool, &c->skews[i], err);
        if (!status)
            c->skews[i]->tokens = (uint64_t)run->params->window_count * run->params->window_tokens;
    }
    return status;
}

static enum kva_status look(struct run *run, struct kva_err *err)
{
    const struct kva_calibrate_params *p = run->params;
    struct kva_calibration *c = run->result;
    struct kva_look_params params = {
        .device = p->device,
        .model = p->model,
        .pool = run->pool,
        .window_tokens = p->window_tokens,
        .step_tokens = p->engine->limits.step_tokens_max,
        .columns = c->columns,
    };
    for (uint32_t i = 0; i < KVA_SKEW_METHOD_COUNT; i++)
        params.skews[i] = c->skews[i];
    enum kva_status status = kva_look_create(&params, &run->look, err);
    if (!status)
        status = run_windows(run, p->window_count, p->window_count + p->look_count, err);
    if (!status)
        memcpy(c->layers, kva_look_layers(run->look), c->layer_count * sizeof(*c->layers));
    kva_look_destroy(run->look);
    run->look = NULL;
    return status;
}

/* --- the whole -------------------------------------------------------------------------------- */

static enum kva_status check(const struct kva_calibrate_params *p, struct kva_err *err)
{
    if (p->window_count == 0 || p->look_count == 0 || p->window_tokens < WINDOW_TOKENS_MIN)
        return kva_fail(err, KVA_EINVAL,
                        "%u windows of %u tokens and %u more are too few: at least one of each of "
                        "%u tokens is needed",
                        p->window_count, p->window_tokens, p->look_count, WINDOW_TOKENS_MIN);
    if (p->window_tokens >= p->engine->limits.context_max)
        return kva_fail(err, KVA_ECONTEXT, "windows of %u tokens exceed the context of %u",
                        p->window_tokens, p->engine->limits.context_max);
    return kva_eigen_check(p->device, err);
}

static enum kva_status alloc(struct run *run, struct kva_err *err)
{
    const struct kva_model_config *config = &run->params->model->config;
    const struct kva_gram_shape shape = {config->layer_count, config->heads, config->kv_heads,
                                         config->head_dim};
    struct kva_calibration *c = run->result;
    c->layer_count = config->layer_count;
    c->columns = kva_max_u32(1, (config->head_dim * KVA_CALIBRATE_PERCENT + 50) / 100);
    c->layers = calloc(c->layer_count, sizeof(*c->layers));
    if (!c->layers)
        return kva_fail(err, KVA_ENOMEM, "out of memory for %u layers", c->layer_count);
    enum kva_status status = kva_gram_create(&shape, &c->gram, err);
    if (!status)
        status = kva_bring_create(run->params->device, config,
                                  run->params->engine->limits.step_tokens_max, &run->bring, err);
    return status;
}

enum kva_status kva_calibrate(const struct kva_calibrate_params *params,
                              struct kva_calibration **ret, struct kva_err *err)
{
    struct run run = {.params = params,
                      .total = (uint64_t)(params->window_count + params->look_count) *
                               params->window_tokens};
    enum kva_status status = check(params, err);
    if (status)
        return status;
    run.result = calloc(1, sizeof(*run.result));
    status = run.result ? alloc(&run, err) : kva_fail(err, KVA_ENOMEM, "out of memory");
    if (!status)
        status = kva_pool_create(params->threads ? params->threads : kva_pool_usable_cores(),
                                 &run.pool, err);
    if (!status)
        status = run_windows(&run, 0, params->window_count, err);
    if (!status)
        status = find_directions(&run, err);
    if (!status)
        status = look(&run, err);
    kva_bring_destroy(run.bring);
    kva_pool_destroy(run.pool);
    if (status) {
        kva_calibration_destroy(run.result);
        return status;
    }
    choose(run.result);
    *ret = run.result;
    return KVA_OK;
}

void kva_calibration_destroy(struct kva_calibration *c)
{
    if (!c)
        return;
    for (uint32_t i = 0; i < KVA_SKEW_METHOD_COUNT; i++)
        kva_skew_destroy(c->skews[i]);
    kva_gram_destroy(c->gram);
    free(c->layers);
    free(c);
}
