/* kept_pass.c - mass within a pass, and what is kept. */
#include "engine/kv/parts/kept_internal.h"

/* --- marks ----------------------------------------------------------------------------------- */

static void *mark(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer,
                  size_t offset)
{
    struct kva_kept_layout l = kva_kept_layout_of(kv, &seq->spec);
    return kva_kept_state_of(seq)->marks + layer * l.layer_bytes + offset;
}

/* Of a page of the window: [kv_heads][KVA_PAGE_TOKENS]. */
static float *window_mass(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer,
                          uint32_t page)
{
    float *window = mark(kv, seq, layer, kva_kept_layout_of(kv, &seq->spec).window);
    return window + page % KVA_KEPT_WINDOW_PAGES * kva_kept_page_marks(kv);
}

static struct kva_keep_store store_of(const struct kva_kv *kv, const struct kva_kv_seq *seq,
                                      uint32_t layer)
{
    struct kva_kept_layout l = kva_kept_layout_of(kv, &seq->spec);
    return (struct kva_keep_store){
        .positions = mark(kv, seq, layer, l.positions),
        .mass = mark(kv, seq, layer, l.mass),
        .error = kva_kept_codes(&seq->spec) ? mark(kv, seq, layer, l.error) : NULL,
        .slots = kva_kept_slots(&seq->spec),
    };
}

float *kva_kept_mean(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer)
{
    if (!kva_kept_codes(&seq->spec))
        return NULL;
    return mark(kv, seq, layer, kva_kept_layout_of(kv, &seq->spec).mean);
}

static float *prompt_mass(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t *stride)
{
    struct kva_kept_prompt l = kva_kept_prompt_of(kv, &seq->spec, kva_kv_pages(seq->prompt_tokens));
    *stride = l.stride;
    return (float *)(void *)(kva_kept_state_of(seq)->prompt + l.mass);
}

static void clear(struct kva_kv *kv, void *to, size_t bytes)
{
    for (size_t done = 0, count; done < bytes; done += count) {
        count = kva_min_size(bytes - done, KVA_KEPT_ZERO_BYTES);
        kva_device_copy(kv->device, KVA_QUEUE_COMPUTE, (unsigned char *)to + done,
                        kva_kept_cache_of(kv)->zeros, count);
    }
}

/* --- mass ------------------------------------------------------------------------------------ */

/* A prompt that begins a layer has no mass there yet. */
void kva_kept_layer_begin(const struct kva_kv_part *self KVA_UNUSED, struct kva_kv *kv,
                          struct kva_kv_pass *pass, uint32_t layer KVA_UNUSED)
{
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        const struct kva_kv_seq *seq = rows->seq;
        if (!kva_kept_state_of(seq) || seq->prefilled || rows->position_first != seq->tokens)
            continue;
        uint32_t stride;
        float *mass = prompt_mass(kv, seq, &stride);
        clear(kv, mass, (size_t)kv->shape.kv_heads * stride * sizeof(float));
    }
}

/* Descriptors of a call of attend_mass. */
struct list {
    struct kva_kept_cache *cache;
    const void **blocks; /* of the first rows of the pass */
    uint32_t count;
};

/* One more: rows before tokens [first, end), whose mass lies at `mass`. */
static void add(struct list *list, const struct kva_kv_rows *rows, struct kva_mass_seq entry,
                uint32_t end)
{
    uint32_t first = entry.mass_first, at = list->count++;
    list->cache->ranges[at] = (struct kva_attend_range){
        .format = KVA_KV_16BIT,
        .token_first = first,
        .token_count = end - first,
        .block_first = (uint32_t)(kva_kv_block_at(rows, first / KVA_PAGE_TOKENS) - list->blocks),
    };
    entry.range_first = at;
    entry.range_count = 1;
    list->cache->seqs[at] = entry;
}

/* Rows of a prompt, of those that count. */
static void add_prompt(const struct kva_kv *kv, struct list *list, const struct kva_kv_rows *rows)
{
    const struct kva_kv_seq *seq = rows->seq;
    uint32_t end = rows->position_first + rows->row_count, first = rows->position_first;
    bool all = seq->spec.mass == KVA_MASS_ALL;
    if (!all && seq->prompt_tokens > KVA_KV_OBSERVED)
        first = kva_max_u32(first, seq->prompt_tokens - KVA_KV_OBSERVED);
    if (first >= end)
        return;
    struct kva_mass_seq entry = {.row_first = rows->row_first + first - rows->position_first,
                                 .row_count = end - first,
                                 .position_first = first};
    entry.mass = prompt_mass(kv, seq, &entry.mass_stride);
    add(list, rows, entry, end);
}

/* The range of a store in few bits, which has been weighed; NULL: it is not such a store. */
static const struct kva_kv_range *weighed(const struct kva_kv_rows *rows)
{
    const struct kva_kv_range *range = kva_kv_find_range(rows, KVA_RANGE_LOWBIT);
    return range && range->weights ? range : NULL;
}

/* What rows gave to the slots of such stores is added to their mass. */
static void add_weighed(struct kva_kv *kv, const struct kva_kv_pass *pass, uint32_t layer)
{
    struct kva_accumulate_seq *seqs = kva_kept_cache_of(kv)->weighed;
    uint32_t count = 0;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        const struct kva_kv_range *range = kva_kept_state_of(rows->seq) ? weighed(rows) : NULL;
        if (!range)
            continue;
        const struct kva_keep_store store = store_of(kv, rows->seq, layer);
        const uint32_t filled = range->page_end * KVA_PAGE_TOKENS;
        seqs[count++] =
            (struct kva_accumulate_seq){store.mass, range->weights, store.slots, filled, filled};
    }
    if (count > 0)
        kva_device_ops(kv->device)
            ->accumulate(kv->device, &(struct kva_accumulate_args){
                                         .seqs = seqs,
                                         .seq_count = count,
                                         .kv_heads = kv->shape.kv_heads,
                                     });
}

/* Rows behind it: what is stored, and the window. */
static void add_decoding(const struct kva_kv *kv, struct list *list, const struct kva_kv_rows *rows,
                         uint32_t layer)
{
    const struct kva_kv_seq *seq = rows->seq;
    const struct kva_keep_store store = store_of(kv, seq, layer);
    uint32_t end = rows->position_first + rows->row_count;
    uint32_t window = seq->offloaded * KVA_PAGE_TOKENS;
    struct kva_mass_seq entry = {.row_first = rows->row_first,
                                 .row_count = rows->row_count,
                                 .position_first = rows->position_first,
                                 .mass = store.mass,
                                 .mass_first = window - kva_kv_stored(seq) * KVA_PAGE_TOKENS,
                                 .mass_stride = store.slots,
                                 .scores = rows->scores};
    if (entry.mass_first < window && !weighed(rows))
        add(list, rows, entry, window);
    entry.mass_stride = KVA_PAGE_TOKENS;
    for (uint32_t page = seq->offloaded; page * KVA_PAGE_TOKENS < end; page++) {
        entry.mass = window_mass(kv, seq, layer, page);
        entry.mass_first = page * KVA_PAGE_TOKENS;
        add(list, rows, entry, kva_min_u32(end, entry.mass_first + KVA_PAGE_TOKENS));
    }
}

void kva_kept_attended(const struct kva_kv_part *self KVA_UNUSED, struct kva_kv *kv,
                       struct kva_kv_pass *pass, const struct kva_kv_attention *attention)
{
    struct list list = {kva_kept_cache_of(kv), pass->rows[0].blocks, 0};
    add_weighed(kv, pass, attention->layer);
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        if (!kva_kept_state_of(rows->seq))
            continue;
        if (rows->seq->prefilled)
            add_decoding(kv, &list, rows, attention->layer);
        else
            add_prompt(kv, &list, rows);
    }
    if (list.count == 0)
        return;
    kva_device_ops(kv->device)
        ->attend_mass(kv->device, &(struct kva_attend_mass_args){
                                      .q = attention->q,
                                      .partials = attention->partials,
                                      .seqs = list.cache->seqs,
                                      .ranges = list.cache->ranges,
                                      .blocks = list.blocks,
                                      .partial_count = attention->partial_count,
                                      .seq_count = list.count,
                                      .q_stride = kv->heads * kv->shape.head_dim,
                                      .heads = kv->heads,
                                      .kv_heads = kv->shape.kv_heads,
                                      .head_dim = kv->shape.head_dim,
                                      .kv_dtype = kv->shape.dtype,
                                      .scale = attention->scale,
                                  });
}

/* --- keeping --------------------------------------------------------------------------------- */

/* Tokens that come to a layer's store, which lies before `position_first`. */
struct coming {
    struct kva_keep_seq keep;
    const void *const *from; /* blocks */
    float *error;            /* of a store in few bits: gets theirs, [kv_heads][keep.stride] */
};

/* Those of some layers of a sequence. */
struct layers {
    const struct kva_kv_seq *seq;
    struct coming *coming; /* [count] */
    uint32_t first, count;
    void *scratch;
    size_t scratch_bytes;
};

/* Where a layer lies in a store page. */
static size_t offset_of(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer)
{
    return layer * kva_kept_block_bytes(kv, &seq->spec);
}

/* How keys are rotated back before they are stored: not where they attend as they are. */
static struct kva_keep_rotary rotary_of(const struct kva_kv *kv, const struct kva_kv_seq *seq)
{
    return kva_kept_state_of(seq)->rolled ? kva_kept_rotary(kv) : (struct kva_keep_rotary){0};
}

static enum kva_keep_score score_of(const struct kva_kv_spec *spec)
{
    if (!kva_kept_codes(spec))
        return KVA_KEEP_MASS;
    return spec->norm == KVA_NORM_MINMAX ? KVA_KEEP_MINMAX : KVA_KEEP_RANK;
}

/* Of the sequence's first page, which comes first however the others do; sinks have keys unlike all
 * others. */
static void find_mean(struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer,
                      const struct coming *coming)
{
    if (coming->keep.position_first > 0)
        return;
    kva_device_ops(kv->device)
        ->mean_keys(kv->device, &(struct kva_mean_keys_args){
                                    .block = coming->from[0],
                                    .mean = kva_kept_mean(kv, seq, layer),
                                    .first = seq->spec.sinks,
                                    .end = KVA_PAGE_TOKENS,
                                    .kv_heads = kv->shape.kv_heads,
                                    .head_dim = kv->shape.head_dim,
                                    .kv_dtype = kv->shape.dtype,
                                });
}

/* What few bits would do to them. */
static void find_errors(struct kva_kv *kv, const struct layers *layers)
{
    struct kva_row_error_seq errors[KVA_KEPT_LAYERS_AT_ONCE];
    for (uint32_t i = 0; i < layers->count; i++) {
        struct coming *coming = &layers->coming[i];
        find_mean(kv, layers->seq, layers->first + i, coming);
        coming->keep.error = coming->error;
        errors[i] =
            (struct kva_row_error_seq){.blocks = coming->from,
                                       .error = coming->error,
                                       .mean = kva_kept_mean(kv, layers->seq, layers->first + i),
                                       .count = coming->keep.count,
                                       .stride = coming->keep.stride};
    }
    kva_device_ops(kv->device)
        ->row_error(kv->device, &(struct kva_row_error_args){
                                    .seqs = errors,
                                    .seq_count = layers->count,
                                    .kv_heads = kv->shape.kv_heads,
                                    .head_dim = kv->shape.head_dim,
                                    .kv_dtype = kv->shape.dtype,
                                    .format = kva_kept_format(kv, &layers->seq->spec)});
}

/* Who stays of each layer's. */
static void decide(struct kva_kv *kv, const struct layers *layers)
{
    const struct kva_kv_spec *spec = &layers->seq->spec;
    struct kva_keep_seq seqs[KVA_KEPT_LAYERS_AT_ONCE];
    for (uint32_t i = 0; i < layers->count; i++) {
        struct kva_keep_seq *k = &layers->coming[i].keep;
        k->store = store_of(kv, layers->seq, layers->first + i);
        k->filled = kva_min_u32(k->position_first, k->store.slots);
        k->sinks = spec->sinks;
        /* A store that has room for all of a sequence may be less than what it would never drop. */
        k->recent = kva_min_u32(spec->recent - KVA_PAGE_TOKENS, k->store.slots - k->sinks);
        k->pure = spec->pure;
    }
    if (kva_kept_codes(spec))
        find_errors(kv, layers);
    for (uint32_t i = 0; i < layers->count; i++)
        seqs[i] = layers->coming[i].keep;
    kva_device_ops(kv->device)
        ->keep(kv->device, &(struct kva_keep_args){.seqs = seqs,
                                                   .scratch = layers->scratch,
                                                   .scratch_bytes = layers->scratch_bytes,
                                                   .seq_count = layers->count,
                                                   .kv_heads = kv->shape.kv_heads,
                                                   .score = score_of(spec),
                                                   .lambda = (float)spec->lambda / 100});
}

/* Rows of those that stay go where they stay. */
static void store(struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer,
                  const struct coming *coming)
{
    const struct kva_kept_state *s = kva_kept_state_of(seq);
    const struct kva_store_seq rows = {.from = coming->from,
                                       .to = s->pages,
                                       .slots = coming->keep.to,
                                       .slot_count = s->page_count * KVA_PAGE_TOKENS,
                                       .mean = kva_kept_mean(kv, seq, layer),
                                       .count = coming->keep.count,
                                       .position_first = coming->keep.position_first};
    kva_device_ops(kv->device)
        ->store_rows(kv->device,
                     &(struct kva_store_rows_args){.seqs = &rows,
                                                   .to_offset_bytes = offset_of(kv, seq, layer),
                                                   .seq_count = 1,
                                                   .kv_heads = kv->shape.kv_heads,
                                                   .head_dim = kv->shape.head_dim,
                                                   .kv_dtype = kv->shape.dtype,
                                                   .format = kva_kept_format(kv, &seq->spec),
                                                   .rotary = rotary_of(kv, seq)});
}

/* Some of them take slots, perhaps of others. */
static void keep(struct kva_kv *kv, const struct layers *layers)
{
    decide(kv, layers);
    for (uint32_t i = 0; i < layers->count; i++)
        store(kv, layers->seq, layers->first + i, &layers->coming[i]);
}

void kva_kept_roll(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t layer, uint32_t offloaded,
                   bool anew)
{
    const struct kva_kept_state *s = kva_kept_state_of(seq);
    const struct kva_keep_store store = store_of(kv, seq, layer);
    uint32_t end = offloaded * KVA_PAGE_TOKENS, filled = kva_min_u32(end, store.slots);
    if (!s->rolled || filled == 0)
        return;
    struct kva_kept_layout l = kva_kept_layout_of(kv, &seq->spec);
    const size_t bytes = (size_t)kv->shape.kv_heads * store.slots * sizeof(struct kva_roll_place);
    unsigned char *places = s->marks + l.places + layer * bytes;
    if (anew)
        clear(kv, places, bytes);
    const struct kva_roll_seq roll = {.positions = store.positions,
                                      .index = (uint32_t *)(void *)(s->marks + l.index),
                                      .places = (struct kva_roll_place *)(void *)places,
                                      .from = (const void *const *)s->pages,
                                      .to = s->rolled,
                                      .mean = kva_kept_mean(kv, seq, layer),
                                      .slots = store.slots,
                                      .filled = filled,
                                      .position_first = end - filled};
    kva_device_ops(kv->device)
        ->roll_rows(kv->device,
                    &(struct kva_roll_rows_args){.seqs = &roll,
                                                 .from_offset_bytes = offset_of(kv, seq, layer),
                                                 .to_offset_bytes = layer * kv->shape.block_bytes,
                                                 .seq_count = 1,
                                                 .kv_heads = kv->shape.kv_heads,
                                                 .head_dim = kv->shape.head_dim,
                                                 .kv_dtype = kv->shape.dtype,
                                                 .format = kva_kept_format(kv, &seq->spec),
                                                 .rotary = kva_kept_rotary(kv)});
}

/* The window's pages have what the prompt's last tokens have, of each KV head `stride` numbers. */
static void fill_window(struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer,
                        const float *mass, uint32_t stride)
{
    for (uint32_t i = 0; i < KVA_KEPT_WINDOW_PAGES; i++) {
        const uint32_t page = seq->offloaded + i, first = page * KVA_PAGE_TOKENS;
        const uint32_t end = kva_min_u32(seq->prompt_tokens, first + KVA_PAGE_TOKENS);
        float *to = window_mass(kv, seq, layer, page);
        clear(kv, to, kva_kept_page_marks(kv) * sizeof(float));
        for (uint32_t head = 0; first < end && head < kv->shape.kv_heads; head++)
            kva_device_copy(kv->device, KVA_QUEUE_COMPUTE, to + (size_t)head * KVA_PAGE_TOKENS,
                            mass + (size_t)head * stride + first, (end - first) * sizeof(float));
    }
}

void kva_kept_prompt_layer(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t layer)
{
    struct kva_kept_state *s = kva_kept_state_of(seq);
    struct kva_kept_prompt l = kva_kept_prompt_of(kv, &seq->spec, kva_kv_pages(seq->prompt_tokens));
    uint32_t end = seq->offloaded * KVA_PAGE_TOKENS, stride;
    float *mass = prompt_mass(kv, seq, &stride);
    struct coming coming = {
        .keep = {.mass = mass,
                 .to = (uint32_t *)(void *)(s->prompt + l.slots),
                 .count = end,
                 .stride = stride},
        .from = s->from,
        .error = (float *)(void *)(s->prompt + l.error),
    };
    const struct layers one = {seq, &coming, layer, 1, s->prompt + l.scratch, l.scratch_bytes};
    for (uint32_t i = 0; i < seq->offloaded; i++)
        s->from[i] = kva_kv_find_block(kv, seq, layer, i);
    if (end > 0) {
        keep(kv, &one);
        kva_kept_roll(kv, seq, layer, seq->offloaded, true);
    }
    fill_window(kv, seq, layer, mass, stride);
}

/* A page leaves the window: its tokens come to the stores of some layers, and the page behind the
 * window has the place of their mass. */
static void give_page(struct kva_kv *kv, struct kva_kv_seq *seq, struct layers *layers,
                      uint32_t page)
{
    const struct kva_kept_cache *cache = kva_kept_cache_of(kv);
    const size_t marks = kva_kept_page_marks(kv);
    const void *from[KVA_KEPT_LAYERS_AT_ONCE];
    struct coming coming[KVA_KEPT_LAYERS_AT_ONCE];
    for (uint32_t i = 0; i < layers->count; i++) {
        from[i] = kva_kv_find_block(kv, seq, layers->first + i, page);
        coming[i] = (struct coming){
            .keep = {.mass = window_mass(kv, seq, layers->first + i, page),
                     .to = cache->slots + i * marks,
                     .count = KVA_PAGE_TOKENS,
                     .stride = KVA_PAGE_TOKENS,
                     .position_first = page * KVA_PAGE_TOKENS},
            .from = &from[i],
            .error = cache->errors + i * marks,
        };
    }
    layers->coming = coming;
    keep(kv, layers);
    for (uint32_t layer = layers->first; layer < layers->first + layers->count; layer++) {
        kva_kept_roll(kv, seq, layer, page + 1, page == 0);
        clear(kv, window_mass(kv, seq, layer, page), marks * sizeof(float));
    }
}

void kva_kept_prepare(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t first)
{
    const struct kva_kept_layout l = kva_kept_layout_of(kv, &seq->spec);
    struct layers layers = {
        .seq = seq,
        .scratch = kva_kept_state_of(seq)->marks + l.scratch,
        .scratch_bytes = l.scratch_layers * l.scratch_bytes,
    };
    for (uint32_t page = seq->prepared; page < first; page++) {
        for (layers.first = 0; layers.first < kv->shape.layers; layers.first += layers.count) {
            layers.count = kva_min_u32(l.scratch_layers, kv->shape.layers - layers.first);
            give_page(kv, seq, &layers, page);
        }
    }
}
