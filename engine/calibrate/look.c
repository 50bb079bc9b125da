/* look.c - the rows of a window as they come: cosines, and what a layer's products are made of. */
#include "engine/calibrate/bring.h"
#include "engine/calibrate/look_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- cosines ---------------------------------------------------------------------------------- */

/* Adds one row's: x before the layer, y with attention's output, z what the next layer gets. */
static void add_cosines(struct kva_look_layer *to, const float *x, const float *y, const float *z,
                        uint32_t count)
{
    double xx = 0, aa = 0, mm = 0, zz = 0, xz = 0, az = 0, mz = 0;
    for (uint32_t i = 0; i < count; i++) {
        const double in = (double)x[i], out = (double)z[i];
        const double attention = (double)y[i] - in, mlp = out - (double)y[i];
        xx += in * in;
        aa += attention * attention;
        mm += mlp * mlp;
        zz += out * out;
        xz += in * out;
        az += attention * out;
        mz += mlp * out;
    }
    to->rows++;
    to->input += xx * zz > 0 ? xz / sqrt(xx * zz) : 0;
    to->attention += aa * zz > 0 ? az / sqrt(aa * zz) : 0;
    to->mlp += mm * zz > 0 ? mz / sqrt(mm * zz) : 0;
}

static void compare(struct kva_look *look, const struct kva_forward_layer_view *view)
{
    const uint32_t count = look->config->hidden_size, next = view->layer + 1;
    const float *hidden = view->hidden;
    if (next == look->config->layer_count)
        return;
    for (uint32_t row = 0; row < view->rows; row++) {
        const size_t at = (size_t)row * count;
        add_cosines(&look->layers[next], look->input + at, look->attended + at, hidden + at, count);
    }
}

/* --- rows ------------------------------------------------------------------------------------- */

/* Samples [*ret, returned) are at positions of the view's rows. */
static uint32_t samples_of(const struct kva_look *look, const struct kva_forward_layer_view *view,
                           uint32_t *ret)
{
    const uint32_t first = view->sequences[0].position_first, end = first + view->rows;
    uint32_t sample = 0;
    while (sample < KVA_LOOK_SAMPLES && kva_look_position(look, sample) < first)
        sample++;
    *ret = sample;
    while (sample < KVA_LOOK_SAMPLES && kva_look_position(look, sample) < end)
        sample++;
    return sample;
}

static float *rehearsed_of(struct kva_look *look, uint32_t layer, uint32_t sample)
{
    return look->rehearsed + ((layer % 2) * KVA_LOOK_SAMPLES + sample) * kva_look_q_row(look);
}

/* Queries of the next layer from what this one gets. */
static void rehearse(struct kva_look *look, const struct kva_forward_layer_view *view)
{
    const uint32_t count = look->config->hidden_size, next = view->layer + 1;
    const uint32_t position_first = view->sequences[0].position_first;
    uint32_t positions[KVA_LOOK_SAMPLES], first, end = samples_of(look, view, &first);
    if (next == look->config->layer_count || first == end || !look->rehearsal)
        return;
    for (uint32_t i = first; i < end; i++) {
        positions[i - first] = kva_look_position(look, i);
        memcpy(look->gathered + (size_t)(i - first) * count,
               (const float *)view->hidden +
                   (size_t)(positions[i - first] - position_first) * count,
               count * sizeof(float));
    }
    kva_rehearse(look->rehearsal, next, look->gathered, positions, end - first,
                 rehearsed_of(look, next, first));
}

static void take_rows(struct kva_look *look, const struct kva_forward_layer_view *view)
{
    const struct kva_model_config *c = look->config;
    const uint32_t position_first = view->sequences[0].position_first;
    const size_t k_row = (size_t)c->kv_heads * c->head_dim, q_row = kva_look_q_row(look);
    uint32_t first, end = samples_of(look, view, &first);
    memcpy(look->keys + position_first * k_row, view->k, view->rows * k_row * sizeof(float));
    for (uint32_t i = first; i < end; i++)
        memcpy(look->own + i * q_row,
               (const float *)view->q + (kva_look_position(look, i) - position_first) * q_row,
               q_row * sizeof(float));
}

void kva_look_at(struct kva_look *look, const struct kva_forward_layer_view *view)
{
    const size_t bytes = (size_t)view->rows * look->config->hidden_size * sizeof(float);
    switch (view->point) {
    case KVA_POINT_INPUT:
        memcpy(look->input, view->hidden, bytes);
        rehearse(look, view);
        break;
    case KVA_POINT_QUERIES:
        take_rows(look, view);
        if (view->sequences[0].position_first + view->rows == look->params.window_tokens)
            kva_look_finish_layer(look, view->layer);
        break;
    case KVA_POINT_ATTENDED:
        memcpy(look->attended, view->hidden, bytes);
        break;
    case KVA_POINT_OUTPUT:
        compare(look, view);
        break;
    }
}

const struct kva_look_layer *kva_look_layers(const struct kva_look *look)
{
    return look->layers;
}

/* --- life ------------------------------------------------------------------------------------- */

static bool alloc_scratch(struct kva_look *look)
{
    const uint32_t threads = kva_pool_threads(look->params.pool);
    const size_t window = look->params.window_tokens;
    look->scratch = calloc(threads, sizeof(*look->scratch));
    for (uint32_t i = 0; look->scratch && i < threads; i++) {
        struct kva_look_scratch *s = &look->scratch[i];
        s->exact = malloc(window * sizeof(float));
        s->partial = malloc(window * sizeof(float));
        s->order = malloc(window * sizeof(float));
        s->query = malloc(look->config->head_dim * sizeof(float));
        if (!s->exact || !s->partial || !s->order || !s->query)
            return false;
    }
    return look->scratch != NULL;
}

static bool alloc(struct kva_look *look)
{
    const struct kva_model_config *c = look->config;
    const size_t window = look->params.window_tokens, steps = look->params.step_tokens;
    const size_t q_bytes = KVA_LOOK_SAMPLES * kva_look_q_row(look) * sizeof(float);
    look->layers = calloc(c->layer_count, sizeof(*look->layers));
    look->planes =
        calloc((size_t)c->layer_count * c->kv_heads * look->params.columns, sizeof(*look->planes));
    look->heads = calloc(c->heads, sizeof(*look->heads));
    look->input = malloc(steps * c->hidden_size * sizeof(float));
    look->attended = malloc(steps * c->hidden_size * sizeof(float));
    look->keys = malloc(window * c->kv_heads * c->head_dim * sizeof(float));
    look->projected =
        malloc(KVA_LOOK_BASES * c->kv_heads * window * look->params.columns * sizeof(float));
    look->own = malloc(q_bytes);
    look->rehearsed = malloc(2 * q_bytes);
    look->gathered = malloc(KVA_LOOK_SAMPLES * c->hidden_size * sizeof(float));
    return look->layers && look->planes && look->heads && look->input && look->attended &&
           look->keys && look->projected && look->own && look->rehearsed && look->gathered &&
           alloc_scratch(look);
}

enum kva_status kva_look_create(const struct kva_look_params *params, struct kva_look **ret,
                                struct kva_err *err)
{
    struct kva_look *look = calloc(1, sizeof(*look));
    if (!look)
        return kva_fail(err, KVA_ENOMEM, "out of memory");
    look->params = *params;
    look->config = &params->model->config;
    enum kva_status status = KVA_OK;
    if (kva_bring_needs_none(params->device))
        status = kva_rehearsal_create(params->device, params->model, KVA_LOOK_SAMPLES,
                                      &look->rehearsal, err);
    if (!status && !alloc(look))
        status = kva_fail(err, KVA_ENOMEM, "out of memory for the keys of %u tokens",
                          params->window_tokens);
    if (status) {
        kva_look_destroy(look);
        return status;
    }
    kva_look_list_planes(look);
    *ret = look;
    return KVA_OK;
}

void kva_look_destroy(struct kva_look *look)
{
    if (!look)
        return;
    for (uint32_t i = 0; look->scratch && i < kva_pool_threads(look->params.pool); i++) {
        free(look->scratch[i].exact);
        free(look->scratch[i].partial);
        free(look->scratch[i].order);
        free(look->scratch[i].query);
    }
    free(look->scratch);
    kva_rehearsal_destroy(look->rehearsal);
    free(look->layers);
    free(look->planes);
    free(look->heads);
    free(look->input);
    free(look->attended);
    free(look->keys);
    free(look->projected);
    free(look->own);
    free(look->rehearsed);
    free(look->gathered);
    free(look);
}
