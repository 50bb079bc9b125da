/* look_layer.c - the products of one layer: what queries want, and what is found of it. */
#include "engine/calibrate/look_internal.h"
#include "engine/dot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const uint32_t kva_look_lengths[KVA_LOOK_LENGTHS] = {512,  1024,  1536,  2048, 4096,
                                                     8192, 16384, 32768, 65536};

/* --- planes ----------------------------------------------------------------------------------- */

static uint32_t plane_columns(const struct kva_look *look)
{
    return look->params.columns / 2 * 2;
}

static uint32_t *planes_of(const struct kva_look *look, uint32_t layer, uint32_t kv_head)
{
    return look->planes + ((size_t)layer * look->config->kv_heads + kv_head) * look->params.columns;
}

void kva_look_list_planes(struct kva_look *look)
{
    const struct kva_model_config *c = look->config;
    const uint32_t count = plane_columns(look) / 2;
    for (uint32_t layer = 0; layer < c->layer_count; layer++) {
        for (uint32_t head = 0; head < c->kv_heads; head++) {
            uint32_t *list = planes_of(look, layer, head);
            kva_skew_planes(look->params.skews[0], c->rope.rotary_dim, layer, head, list, count,
                            list + count);
        }
    }
}

/* --- products --------------------------------------------------------------------------------- */

/* The first columns of a vector in a basis. */
static void project(const struct kva_look *look, enum kva_look_basis basis, uint32_t layer,
                    uint32_t kv_head, const float *vector, float *out)
{
    const uint32_t d = look->config->head_dim, columns = look->params.columns;
    const struct kva_skew *skew =
        look->params.skews[basis < KVA_LOOK_FIRST ? 0 : basis - KVA_LOOK_FIRST];
    if (basis == KVA_LOOK_NONE) {
        const uint32_t *order = skew->columns + kva_skew_columns_at(skew, layer, kv_head);
        for (uint32_t j = 0; j < columns; j++)
            out[j] = vector[order[j]];
        return;
    }
    if (basis == KVA_LOOK_PLANES) {
        const uint32_t *list = planes_of(look, layer, kv_head);
        for (uint32_t j = 0; j < columns; j++)
            out[j] = j < plane_columns(look) ? vector[list[j]] : 0;
        return;
    }
    const float *a = skew->basis + kva_skew_basis_at(skew, layer, kv_head);
    memset(out, 0, columns * sizeof(*out));
    for (uint32_t i = 0; i < d; i++) {
        for (uint32_t j = 0; j < columns; j++)
            out[j] += vector[i] * a[(size_t)i * d + j];
    }
}

struct layer_work {
    struct kva_look *look;
    uint32_t layer;
};

static float *projected_of(const struct kva_look *look, uint32_t basis, uint32_t kv_head)
{
    const size_t window = look->params.window_tokens;
    return look->projected +
           ((size_t)basis * look->config->kv_heads + kv_head) * window * look->params.columns;
}

/* The keys of one KV head in one basis. */
static void project_keys(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct layer_work *work = opaque;
    const struct kva_look *look = work->look;
    const struct kva_model_config *c = look->config;
    const uint32_t kv_head = index / KVA_LOOK_BASES, basis = index % KVA_LOOK_BASES;
    float *out = projected_of(look, basis, kv_head);
    for (uint32_t t = 0; t < look->params.window_tokens; t++)
        project(look, (enum kva_look_basis)basis, work->layer, kv_head,
                look->keys + ((size_t)t * c->kv_heads + kv_head) * c->head_dim,
                out + (size_t)t * look->params.columns);
}

/* --- one query -------------------------------------------------------------------------------- */

/* Tokens [first, end) of a window. */
struct span {
    uint32_t first, end;
};

static float largest(const float *numbers, struct span span)
{
    float most = numbers[span.first];
    for (uint32_t t = span.first + 1; t < span.end; t++)
        most = numbers[t] > most ? numbers[t] : most;
    return most;
}

static uint32_t count_from(const float *numbers, struct span span, float least)
{
    uint32_t count = 0;
    for (uint32_t t = span.first; t < span.end; t++)
        count += numbers[t] >= least;
    return count;
}

/* The n-th largest number, n from 1; reorders them. */
static float nth_largest(float *numbers, uint32_t count, uint32_t n)
{
    uint32_t low = 0, high = count;
    for (;;) {
        const float pivot = numbers[low + (high - low) / 2];
        uint32_t above = low, at = low, end = high;
        while (at < end) {
            const float number = numbers[at];
            if (number > pivot) {
                numbers[at++] = numbers[above];
                numbers[above++] = number;
            } else if (number < pivot) {
                numbers[at] = numbers[--end];
                numbers[end] = number;
            } else {
                at++;
            }
        }
        if (n <= above)
            high = above;
        else if (n <= at)
            return pivot;
        else
            low = at;
    }
}

/* What the n largest partial products have of the n wanted tokens and of their probability. */
static void add_found(struct kva_look_scratch *s, struct span span, struct kva_look_found *to)
{
    const float most = largest(s->exact, span);
    const uint32_t wanted = count_from(s->exact, span, most - KVA_LOOK_ALPHA);
    uint32_t hits = 0;
    double sum = 0, mass = 0;
    if (wanted == 0) /* scores that are no numbers */
        return;
    memcpy(s->order, s->partial + span.first, (span.end - span.first) * sizeof(float));
    const float least = nth_largest(s->order, span.end - span.first, wanted);
    for (uint32_t t = span.first; t < span.end; t++) {
        const double weight = exp((double)(s->exact[t] - most));
        const bool found = s->partial[t] >= least;
        sum += weight;
        mass += found ? weight : 0;
        hits += found && s->exact[t] >= most - KVA_LOOK_ALPHA;
    }
    to->recall += (double)hits / wanted;
    to->mass += mass / sum;
    to->count++;
}

static void score(const struct kva_look *look, const float *query, const float *keys, size_t stride,
                  uint32_t columns, struct span span, float *out)
{
    for (uint32_t t = span.first; t < span.end; t++)
        out[t] = look->config->attend_scale * kva_dot(query, keys + t * stride, columns);
}

struct sample {
    struct kva_look *look;
    struct kva_look_scratch *scratch;
    struct kva_look_layer *to;
    uint32_t layer, kv_head;
    struct span all, away;
};

static void add_both(const struct sample *s, uint32_t basis, enum kva_look_query query)
{
    add_found(s->scratch, s->all, &s->to->found[basis][query][KVA_LOOK_ALL]);
    if (s->away.first < s->away.end)
        add_found(s->scratch, s->away, &s->to->found[basis][query][KVA_LOOK_AWAY]);
}

static void try_bases(const struct sample *s, const float *vector, enum kva_look_query query)
{
    const struct kva_look *look = s->look;
    const uint32_t columns = look->params.columns;
    for (uint32_t basis = 0; basis < KVA_LOOK_BASES; basis++) {
        project(look, (enum kva_look_basis)basis, s->layer, s->kv_head, vector, s->scratch->query);
        score(look, s->scratch->query, projected_of(look, basis, s->kv_head), columns, columns,
              s->all, s->scratch->partial);
        add_both(s, basis, query);
    }
}

static void add_wanted(const struct sample *s)
{
    const uint32_t tokens = s->all.end;
    const float least = largest(s->scratch->exact, s->all) - KVA_LOOK_ALPHA;
    for (uint32_t i = 0; i < KVA_LOOK_LENGTHS; i++) {
        const uint32_t length = kva_look_lengths[i];
        if (tokens > length || tokens <= length - length / 8)
            continue;
        s->to->wanted[i] += count_from(s->scratch->exact, s->all, least);
        s->to->wanted_count[i]++;
    }
}

static void look_at_query(const struct sample *s, const float *own, const float *rehearsed)
{
    const struct kva_model_config *c = s->look->config;
    const size_t stride = (size_t)c->kv_heads * c->head_dim;
    const float *keys = s->look->keys + (size_t)s->kv_head * c->head_dim;
    score(s->look, own, keys, stride, c->head_dim, s->all, s->scratch->exact);
    add_wanted(s);
    try_bases(s, own, KVA_LOOK_OWN);
    if (!rehearsed)
        return;
    try_bases(s, rehearsed, KVA_LOOK_REHEARSED);
    score(s->look, rehearsed, keys, stride, c->head_dim, s->all, s->scratch->partial);
    add_both(s, KVA_LOOK_NONE, KVA_LOOK_WHOLE);
}

/* --- a layer ---------------------------------------------------------------------------------- */

static void look_at_head(void *opaque, uint32_t head, uint32_t worker)
{
    const struct layer_work *work = opaque;
    struct kva_look *look = work->look;
    const struct kva_model_config *c = look->config;
    const uint32_t window = c->layer_window[work->layer];
    const size_t q_row = kva_look_q_row(look), at = (size_t)head * c->head_dim;
    const float *rehearsed = look->rehearsed + (work->layer % 2) * KVA_LOOK_SAMPLES * q_row + at;
    look->heads[head] = (struct kva_look_layer){0};
    for (uint32_t i = 0; i < KVA_LOOK_SAMPLES; i++) {
        const uint32_t end = kva_look_position(look, i) + 1;
        const uint32_t first = window > 0 && end > window ? end - window : 0;
        const uint32_t newest = end > KVA_LOOK_NEWEST ? end - KVA_LOOK_NEWEST : 0;
        const struct sample sample = {
            .look = look,
            .scratch = &look->scratch[worker],
            .to = &look->heads[head],
            .layer = work->layer,
            .kv_head = head / (c->heads / c->kv_heads),
            .all = {first, end},
            .away = {kva_max_u32(first, KVA_LOOK_SINKS), newest},
        };
        look_at_query(&sample, look->own + i * q_row + at,
                      work->layer > 0 && look->rehearsal ? rehearsed + i * q_row : NULL);
    }
}

static void add_head(struct kva_look_layer *to, const struct kva_look_layer *from)
{
    for (uint32_t b = 0; b < KVA_LOOK_BASES; b++) {
        for (uint32_t q = 0; q < KVA_LOOK_QUERIES_COUNT; q++) {
            for (uint32_t c = 0; c < KVA_LOOK_CANDIDATES; c++) {
                to->found[b][q][c].recall += from->found[b][q][c].recall;
                to->found[b][q][c].mass += from->found[b][q][c].mass;
                to->found[b][q][c].count += from->found[b][q][c].count;
            }
        }
    }
    for (uint32_t i = 0; i < KVA_LOOK_LENGTHS; i++) {
        to->wanted[i] += from->wanted[i];
        to->wanted_count[i] += from->wanted_count[i];
    }
}

void kva_look_finish_layer(struct kva_look *look, uint32_t layer)
{
    const struct kva_model_config *c = look->config;
    struct layer_work work = {look, layer};
    kva_pool_run(look->params.pool, c->kv_heads * KVA_LOOK_BASES, project_keys, &work);
    kva_pool_run(look->params.pool, c->heads, look_at_head, &work);
    for (uint32_t head = 0; head < c->heads; head++)
        add_head(&look->layers[layer], &look->heads[head]);
}
