/* kept.c - a store of kept tokens: its memory, and what survives a suspension. */
#include "engine/kv/parts/kept.h"

#include "engine/kv/parts/kept_internal.h"
#include "engine/kv/saved.h"

#include <stdlib.h>

/* What a device turns at once (kernels/ops.h: roll_rows). */
#define ROLLED_SLOTS_MAX 65536u

static struct kva_kept_prompt prompt_of(const struct kva_kv *kv, const struct kva_kv_seq *seq)
{
    return kva_kept_prompt_of(kv, &seq->spec, kva_kv_pages(seq->prompt_tokens));
}

/* --- memory ---------------------------------------------------------------------------------- */

/* What a part has, as one number: the marks, the prompt's memory, pages. */
#define HAS_MARKS  1u
#define HAS_PROMPT 2u
#define PAGE       4u

static uint32_t held(const struct kva_kv_seq *seq)
{
    const struct kva_kept_state *s = kva_kept_state_of(seq);
    return (s->marks ? HAS_MARKS : 0u) + (s->prompt ? HAS_PROMPT : 0u) + s->page_count * PAGE;
}

static void free_item(struct kva_kv *kv, struct kva_kv_seq *seq, unsigned char **item, size_t bytes)
{
    if (!*item)
        return;
    kva_kv_free_device(kv, *item, bytes);
    seq->device_bytes -= bytes;
    *item = NULL;
}

static bool take_item(struct kva_kv *kv, struct kva_kv_seq *seq, unsigned char **item, size_t bytes)
{
    if (*item)
        return true;
    *item = kva_kv_alloc_device(kv, bytes);
    seq->device_bytes += *item ? bytes : 0;
    return *item != NULL;
}

static uint32_t pages_of(const struct kva_kv_spec *spec, uint32_t offloaded)
{
    return kva_min_u32(kva_kept_pages_max(spec), offloaded);
}

/* What only the part has goes to the host, or comes back: marks, the mass of an unfinished layer of
 * a prompt, and store pages. */
static void move_saved(struct kva_kv *kv, struct kva_kv_seq *seq,
                       void (*move)(struct kva_kv *kv, struct kva_kv_seq *seq, size_t at,
                                    void *item, size_t bytes))
{
    const struct kva_kept_state *s = kva_kept_state_of(seq);
    size_t marks = kva_kept_layout_of(kv, &seq->spec).layer_bytes * kv->shape.layers;
    size_t prompt = s->prompt ? prompt_of(kv, seq).slots : 0;
    size_t page = kva_kept_page_bytes(kv, &seq->spec);
    kva_kv_order_copies(kv);
    move(kv, seq, 0, s->marks, marks);
    if (prompt > 0)
        move(kv, seq, marks, s->prompt, prompt);
    for (uint32_t i = 0; i < pages_of(&seq->spec, seq->offloaded); i++)
        move(kv, seq, marks + prompt + i * page, s->pages[i], page);
}

static void roll_all(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    for (uint32_t layer = 0; layer < kv->shape.layers; layer++)
        kva_kept_roll(kv, seq, layer, seq->offloaded, true);
}

/* In the midst of a prompt pages are rolled at its end: of which layers there is a store by now is
 * not known here. */
static void restore(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    const struct kva_kept_state *s = kva_kept_state_of(seq);
    move_saved(kv, seq, kva_kv_saved_get);
    if (!s->rolled || !seq->prefilled)
        return;
    kva_kv_order_compute(kv);
    roll_all(kv, seq);
}

static void free_pages(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count)
{
    struct kva_kept_state *s = kva_kept_state_of(seq);
    size_t bytes = kva_kept_page_bytes(kv, &seq->spec);
    while (s->page_count > count) {
        uint32_t index = --s->page_count;
        kva_kv_free_device(kv, s->pages[index], bytes);
        seq->device_bytes -= bytes;
        if (!s->rolled)
            continue;
        kva_kv_free_device(kv, s->rolled[index], kv->shape.page_bytes);
        seq->device_bytes -= kv->shape.page_bytes;
    }
}

static void cut(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count, bool saves)
{
    struct kva_kept_state *s = kva_kept_state_of(seq);
    if (saves && s->marks)
        move_saved(kv, seq, kva_kv_saved_put);
    if (saves && s->rolled && !seq->prefilled)
        s->lost_rolled = true;
    free_pages(kv, seq, count / PAGE);
    if (!(count & HAS_PROMPT))
        free_item(kv, seq, &s->prompt, prompt_of(kv, seq).bytes);
    if (!(count & HAS_MARKS))
        free_item(kv, seq, &s->marks, kva_kept_layout_of(kv, &seq->spec).bytes);
}

static bool take_page(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    struct kva_kept_state *s = kva_kept_state_of(seq);
    size_t bytes = kva_kept_page_bytes(kv, &seq->spec);
    void *page = kva_kv_alloc_device(kv, bytes);
    void *rolled = page && s->rolled ? kva_kv_alloc_device(kv, kv->shape.page_bytes) : NULL;
    if (!page || (s->rolled && !rolled)) {
        kva_kv_free_device(kv, page, bytes);
        return false;
    }
    if (s->rolled)
        s->rolled[s->page_count] = rolled;
    s->pages[s->page_count++] = page;
    seq->device_bytes += bytes + (s->rolled ? kv->shape.page_bytes : 0);
    return true;
}

static bool alloc(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t offloaded,
                  uint32_t end KVA_UNUSED)
{
    struct kva_kept_state *s = kva_kept_state_of(seq);
    uint32_t before = held(seq);
    bool ok = take_item(kv, seq, &s->marks, kva_kept_layout_of(kv, &seq->spec).bytes) &&
              (seq->prefilled || take_item(kv, seq, &s->prompt, prompt_of(kv, seq).bytes));
    while (ok && s->page_count < pages_of(&seq->spec, offloaded))
        ok = take_page(kv, seq);
    if (!ok)
        cut(kv, seq, before, false);
    return ok;
}

static uint64_t footprint(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                          const struct kva_kv_extent *extent)
{
    uint64_t pages = pages_of(spec, extent->offloaded);
    uint64_t bytes = kva_tier_footprint(kv->tier, kva_kept_page_bytes(kv, spec), pages) +
                     kva_kept_layout_of(kv, spec).bytes;
    if (kva_kept_rolls(kv, spec))
        bytes += kva_tier_footprint(kv->tier, kv->shape.page_bytes, pages);
    if (!extent->prefilled)
        bytes += kva_kept_prompt_of(kv, spec, extent->offloaded + extent->resident).bytes;
    return bytes;
}

static uint64_t saved_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                            uint32_t prompt)
{
    return kva_kept_layout_of(kv, spec).layer_bytes * (uint64_t)kv->shape.layers +
           kva_kept_prompt_of(kv, spec, kva_kv_pages(prompt)).slots +
           kva_kept_pages_max(spec) * (uint64_t)kva_kept_page_bytes(kv, spec);
}

static void prompt_end(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    struct kva_kept_state *s = kva_kept_state_of(seq);
    if (s->lost_rolled && seq->offloaded > 0)
        roll_all(kv, seq);
    s->lost_rolled = false;
    free_item(kv, seq, &s->prompt, prompt_of(kv, seq).bytes);
}

/* --- life ------------------------------------------------------------------------------------ */

static enum kva_status check(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                             struct kva_err *err)
{
    if (kv->windowed)
        return kva_fail_param(err, KVA_EUNSUPPORTED, "policy",
                              "policy '%s' needs layers that attend to all tokens, the model's "
                              "have sliding windows",
                              kva_kv_spec_policy_name(spec));
    if (kva_kept_rolls(kv, spec) && kva_kept_slots(spec) > ROLLED_SLOTS_MAX)
        return kva_fail_param(err, KVA_EUNSUPPORTED, "positions",
                              "positions=index is for at most %u kept tokens, these are %u",
                              ROLLED_SLOTS_MAX, kva_kept_slots(spec));
    return kva_kv_check_heads(kv, spec, err);
}

static enum kva_status init(struct kva_kv *kv, struct kva_kv_seq *seq, struct kva_err *err)
{
    struct kva_kept_state *s = kva_kept_state_of(seq);
    uint32_t pages = kva_min_u32(kva_kept_pages_max(&seq->spec), seq->pages_max);
    s->pages = calloc(pages, sizeof(void *));
    s->from = calloc(kva_kv_pages(seq->prompt_tokens), sizeof(void *));
    if (kva_kept_rolls(kv, &seq->spec))
        s->rolled = calloc(pages, sizeof(void *));
    bool ready = s->pages && s->from && (s->rolled || !kva_kept_rolls(kv, &seq->spec)) &&
                 kva_tier_prepare(kv->tier, kva_kept_layout_of(kv, &seq->spec).bytes) &&
                 kva_tier_prepare(kv->tier, prompt_of(kv, seq).bytes) &&
                 kva_tier_prepare(kv->tier, kva_kept_page_bytes(kv, &seq->spec)) &&
                 kva_tier_prepare(kv->tier, kv->shape.page_bytes);
    return ready ? KVA_OK
                 : kva_fail(err, KVA_ENOMEM, "out of memory for a store of %u kept tokens",
                            kva_kept_slots(&seq->spec));
}

static void finish(struct kva_kv *kv KVA_UNUSED, struct kva_kv_seq *seq)
{
    struct kva_kept_state *s = kva_kept_state_of(seq);
    free(s->pages);
    free(s->rolled);
    free((void *)s->from);
}

/* Slots and errors of a page that leaves. */
static size_t leaving_bytes(const struct kva_kv *kv)
{
    return KVA_KEPT_LAYERS_AT_ONCE * kva_kept_page_marks(kv) * (sizeof(uint32_t) + sizeof(float));
}

static enum kva_status cache_init(const struct kva_kv_part *self, struct kva_kv *kv,
                                  struct kva_err *err)
{
    struct kva_kept_cache *cache = kva_kv_part_cache(kv, self);
    void *zeros, *slots;
    const size_t entries = (1 + KVA_KEPT_WINDOW_PAGES) * (size_t)kv->sequences_max;
    cache->seqs = calloc(entries, sizeof(*cache->seqs));
    cache->ranges = calloc(entries, sizeof(*cache->ranges));
    cache->weighed = calloc(kv->sequences_max, sizeof(*cache->weighed));
    if (!cache->seqs || !cache->ranges || !cache->weighed)
        return kva_fail(err, KVA_ENOMEM, "out of memory for the KV cache");
    enum kva_status status =
        kva_device_alloc(kv->device, KVA_MEM_DEVICE, KVA_KEPT_ZERO_BYTES, &zeros, err);
    if (status)
        return status;
    cache->zeros = zeros;
    status = kva_device_alloc(kv->device, KVA_MEM_DEVICE, leaving_bytes(kv), &slots, err);
    if (status)
        return status;
    cache->slots = slots;
    cache->errors = (float *)slots + KVA_KEPT_LAYERS_AT_ONCE * kva_kept_page_marks(kv);
    return KVA_OK;
}

static void cache_finish(const struct kva_kv_part *self, struct kva_kv *kv)
{
    struct kva_kept_cache *cache = kva_kv_part_cache(kv, self);
    free(cache->seqs);
    free(cache->ranges);
    free(cache->weighed);
    if (cache->zeros)
        kva_device_free(kv->device, KVA_MEM_DEVICE, cache->zeros, KVA_KEPT_ZERO_BYTES);
    if (cache->slots)
        kva_device_free(kv->device, KVA_MEM_DEVICE, cache->slots, leaving_bytes(kv));
}

/* --- in a layer ------------------------------------------------------------------------------ */

/* In few bits, as they are. */
static void locate_coded(const struct kva_kv *kv, struct kva_kv_rows *rows, uint32_t layer)
{
    const struct kva_kv_seq *seq = rows->seq;
    const struct kva_kept_state *s = kva_kept_state_of(seq);
    size_t weights = kva_kept_layout_of(kv, &seq->spec).weights;
    kva_kv_add_range(rows, (struct kva_kv_range){
                               .kind = KVA_RANGE_LOWBIT,
                               .page_end = kva_kv_stored(seq),
                               .format = kva_kept_format(kv, &seq->spec),
                               .low = s->pages,
                               .low_offset_bytes = layer * kva_kept_block_bytes(kv, &seq->spec),
                               .weights = (float *)(void *)(s->marks + weights),
                               .mean = kva_kept_mean(kv, seq, layer),
                           });
}

/* Attention keeps the scores of a row with the pages from `first` on, for its mass. */
static void keep_scores(const struct kva_kv *kv, struct kva_kv_rows *rows, uint32_t first)
{
    const struct kva_kept_layout l = kva_kept_layout_of(kv, &rows->seq->spec);
    unsigned char *marks = kva_kept_state_of(rows->seq)->marks;
    if (rows->row_count == 1)
        rows->scores = (struct kva_attend_scores){
            .data = (float *)(void *)(marks + l.scores),
            .split_first = first * KVA_PAGE_TOKENS / KVA_ATTEND_SPLIT_TOKENS,
            .split_count = l.splits,
        };
}

/* In 16 bits: where the last pages before the window would be. */
static void locate(const struct kva_kv *kv, struct kva_kv_rows *rows, uint32_t layer)
{
    const struct kva_kv_seq *seq = rows->seq;
    const struct kva_kept_state *s = kva_kept_state_of(seq);
    const bool coded = kva_kept_codes(&seq->spec) && !s->rolled;
    uint32_t count = kva_kv_stored(seq), first = seq->offloaded - count;
    if (!seq->prefilled)
        return;
    keep_scores(kv, rows, coded ? seq->offloaded : first);
    if (count == 0)
        return;
    if (coded) {
        locate_coded(kv, rows, layer);
        return;
    }
    void *const *pages = s->rolled ? s->rolled : s->pages;
    for (uint32_t i = 0; i < count; i++)
        *kva_kv_block_at(rows, first + i) =
            (unsigned char *)pages[i] + layer * kv->shape.block_bytes;
    kva_kv_add_range(rows, (struct kva_kv_range){.kind = KVA_RANGE_BLOCKS,
                                                 .page_first = first,
                                                 .page_end = seq->offloaded});
}

const struct kva_kv_part kva_kv_part_kept = {
    .state_bytes = sizeof(struct kva_kept_state),
    .cache_bytes = sizeof(struct kva_kept_cache),
    .cache_init = cache_init,
    .cache_finish = cache_finish,
    .check = check,
    .init = init,
    .finish = finish,
    .footprint = footprint,
    .saved_bytes = saved_bytes,
    .alloc = alloc,
    .held = held,
    .cut = cut,
    .restore = restore,
    .prompt_layer = kva_kept_prompt_layer,
    .prompt_end = prompt_end,
    .prepare = kva_kept_prepare,
    .locate = locate,
    .layer_begin = kva_kept_layer_begin,
    .attended = kva_kept_attended,
};
