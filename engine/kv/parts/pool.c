/* pool.c - a limit on what a sequence has in host memory. */
#include "engine/kv/parts/pool.h"

#include "engine/kv/parts/copies.h"
#include "engine/kv/placement.h"
#include "engine/kv/saved.h"

#include <stdlib.h>

/* Of a sequence. */
struct state {
    struct kva_page **pages; /* [slots / 64]: of the slots, once there are victims */
    void **homes;            /* [slots / 64]: and where they are in host memory */
    bool full;               /* there have been victims */
    unsigned char *marks;    /* device: struct layout; NULL: not there */
    uint64_t victims;        /* not in the counter yet */
};

static struct state *state_of(const struct kva_kv_seq *seq)
{
    return kva_kv_part_state(seq, &kva_kv_part_pool);
}

/* --- how much -------------------------------------------------------------------------------- */

/* Sinks and a page that comes must fit. */
#define PAGES_MIN 2u

static uint32_t pages_of(const struct kva_kv_spec *spec)
{
    return kva_max_u32(kva_kv_pages(spec->pool), PAGES_MIN);
}

bool kva_kv_pool_limits(const struct kva_kv_spec *spec)
{
    if (spec->pool == 0 || spec->pool & KVA_KV_PERCENT)
        return false;
    return kva_kv_policy_of(spec)->offloaded(spec, spec->tokens_max) > pages_of(spec);
}

uint32_t kva_kv_pool_stored(const struct kva_kv_spec *spec, uint32_t offloaded)
{
    return kva_kv_pool_limits(spec) ? kva_min_u32(offloaded, pages_of(spec)) : offloaded;
}

/* Pages of a prompt that is too long for the slots: so many, from the second one on, are dropped. */
static uint32_t gap_of(const struct kva_kv_seq *seq)
{
    const uint32_t offloaded = seq->policy->offloaded(&seq->spec, seq->prompt_tokens);
    return offloaded - kva_kv_pool_stored(&seq->spec, offloaded);
}

uint32_t kva_kv_pool_source(const struct kva_kv_seq *seq, uint32_t index)
{
    return index > 0 && kva_kv_pool_limits(&seq->spec) ? index + gap_of(seq) : index;
}

uint32_t kva_kv_pool_gone(const struct kva_kv_seq *seq)
{
    if (kva_kv_pool_is_full(seq))
        return seq->offloaded;
    return kva_kv_pool_limits(&seq->spec) ? 1 + gap_of(seq) : 0;
}

/* The prompt, or what comes before the policy begins, or the slots, and a window; and copies of those
 * of the prompt's pages that are among the slots and perhaps others' too. */
uint32_t kva_kv_pool_host_pages(const struct kva_kv_spec *spec, uint32_t prompt, uint32_t tokens)
{
    const uint32_t all = kva_kv_pages(tokens), read = kva_kv_pages(prompt);
    if (!kva_kv_pool_limits(spec))
        return all;
    /* A page is taken before another one leaves. */
    const uint32_t window = all - kva_kv_policy_of(spec)->offloaded(spec, tokens) + 2;
    const uint32_t slots = pages_of(spec);
    const uint32_t whole = kva_max_u32(read, kva_kv_pages(kva_min_u32(tokens, spec->min_tokens)));
    return kva_min_u32(all, kva_max_u32(whole, slots) + window) + kva_min_u32(read, slots);
}

/* --- marks ----------------------------------------------------------------------------------- */

/* What is saved comes first, layer by layer: positions | mass. */
struct layout {
    uint32_t slots;
    size_t positions, mass; /* from the layer's beginning */
    size_t layer_bytes;
    size_t to; /* where tokens go: of one layer at a time, as the rest */
    size_t scratch;
    size_t scratch_bytes;
    size_t bytes;
};

static struct layout layout_of(const struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    const uint32_t heads = kv->shape.kv_heads, slots = pages_of(spec) * KVA_PAGE_TOKENS;
    const size_t all = (size_t)heads * slots * sizeof(uint32_t);
    struct layout l = {.slots = slots,
                       .scratch_bytes = kva_keep_scratch_bytes(heads, slots, KVA_PAGE_TOKENS)};
    l.positions = kva_kv_lay_piece(&l.layer_bytes, all);
    l.mass = kva_kv_lay_piece(&l.layer_bytes, all);
    l.bytes = l.layer_bytes * kv->shape.layers;
    l.to = kva_kv_lay_piece(&l.bytes, all);
    l.scratch = kva_kv_lay_piece(&l.bytes, l.scratch_bytes);
    /* Items are whole chunks of the tier, so that there are few sizes of them. */
    l.bytes = kva_div_up(l.bytes, kv->shape.page_bytes) * kv->shape.page_bytes;
    return l;
}

static void *mark(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer,
                  size_t offset)
{
    return state_of(seq)->marks + layer * layout_of(kv, &seq->spec).layer_bytes + offset;
}

static struct kva_use_seq use_of(const struct kva_kv *kv, const struct kva_kv_seq *seq,
                                 uint32_t layer)
{
    const struct layout l = layout_of(kv, &seq->spec);
    return (struct kva_use_seq){.mass = mark(kv, seq, layer, l.mass), .slots = l.slots};
}

bool kva_kv_pool_use(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer,
                     uint32_t position, struct kva_use_seq *ret)
{
    if (!kva_kv_pool_limits(&seq->spec) || seq->spec.victim == KVA_VICTIM_FIFO)
        return false;
    *ret = use_of(kv, seq, layer);
    ret->filled = kva_kv_stored(seq) * KVA_PAGE_TOKENS;
    ret->rule = seq->spec.victim == KVA_VICTIM_LRU ? KVA_USE_STAMP : KVA_USE_COUNT;
    ret->first = (float)position;
    return true;
}

/* --- tokens into slots ----------------------------------------------------------------------- */

/* `count` tokens from `position_first` on come to a layer's slots, of which `filled` are taken:
 * marks->to says where they are. Of equal masses, which all are under fifo, the older one goes. */
static void give_slots(struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer,
                       uint32_t filled, uint32_t count, uint32_t position_first)
{
    const struct kva_ops *ops = kva_device_ops(kv->device);
    const struct layout l = layout_of(kv, &seq->spec);
    unsigned char *marks = state_of(seq)->marks;
    const struct kva_keep_seq keep = {.store = {.positions = mark(kv, seq, layer, l.positions),
                                                .mass = mark(kv, seq, layer, l.mass),
                                                .slots = l.slots},
                                      .to = (uint32_t *)(void *)(marks + l.to),
                                      .filled = filled,
                                      .count = count,
                                      .stride = count,
                                      .position_first = position_first,
                                      .sinks = seq->spec.sinks,
                                      .recent = KVA_PAGE_TOKENS,
                                      .newer = true};
    ops->keep(kv->device, &(struct kva_keep_args){.seqs = &keep,
                                                  .scratch = marks + l.scratch,
                                                  .scratch_bytes = l.scratch_bytes,
                                                  .seq_count = 1,
                                                  .kv_heads = kv->shape.kv_heads,
                                                  .score = KVA_KEEP_MASS});
    if (seq->spec.victim != KVA_VICTIM_LRU)
        return;
    struct kva_use_seq use = use_of(kv, seq, layer);
    use.used = keep.to;
    use.count = count;
    use.filled = kva_min_u32(filled + count, l.slots);
    use.rule = KVA_USE_STAMP;
    use.first = (float)position_first; /* as if it had been chosen when it came */
    use.step = 1;
    ops->use_rows(kv->device, &(struct kva_use_rows_args){&use, 1, kv->shape.kv_heads});
}

/* Pages of slots from `first` on, which are empty, get those of the sequence from `page` on. */
static void fill(struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t first, uint32_t count,
                 uint32_t page)
{
    for (uint32_t layer = 0; layer < kv->shape.layers && count > 0; layer++)
        give_slots(kv, seq, layer, first * KVA_PAGE_TOKENS, count * KVA_PAGE_TOKENS,
                   page * KVA_PAGE_TOKENS);
}

/* The slots become pages that nobody else has. */
static void own_pages(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    struct state *s = state_of(seq);
    kva_kv_order_compute(kv);
    /* Fetches that wait in the queue find pages where they were. */
    kva_device_sync(kv->device, KVA_QUEUE_COPY);
    for (uint32_t i = 0; i < pages_of(&seq->spec); i++) {
        struct kva_page *page = seq->pages[kva_kv_pool_source(seq, i)];
        const bool alone = i > 0 && page->refs == 1 && !page->cached; /* the first one stays */
        if (alone && kva_page_pool_hold(kv->pages, page)) {
            kva_page_pool_disown(page);
            s->pages[i] = page;
        } else {
            s->pages[i] = kva_page_pool_take(kv->pages);
            seq->promised_pages--;
            kva_device_copy(kv->device, KVA_QUEUE_COMPUTE, s->pages[i]->host, page->host,
                            kv->shape.page_bytes);
        }
        s->homes[i] = s->pages[i]->host;
    }
    seq->pool_pages = pages_of(&seq->spec);
    s->full = true;
}

/* A page that leaves takes the slots of victims. */
static void replace(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t page)
{
    struct state *s = state_of(seq);
    const struct layout l = layout_of(kv, &seq->spec);
    for (uint32_t layer = 0; layer < kv->shape.layers; layer++) {
        const void *from = kva_kv_find_block(kv, seq, layer, page);
        give_slots(kv, seq, layer, l.slots, KVA_PAGE_TOKENS, page * KVA_PAGE_TOKENS);
        const struct kva_store_seq store = {.from = &from,
                                            .to = s->homes,
                                            .slots = (const uint32_t *)(void *)(s->marks + l.to),
                                            .slot_count = l.slots,
                                            .count = KVA_PAGE_TOKENS};
        kva_device_ops(kv->device)
            ->store_rows(kv->device, &(struct kva_store_rows_args){
                                         .seqs = &store,
                                         .to_offset_bytes = layer * kv->shape.block_bytes,
                                         .seq_count = 1,
                                         .kv_heads = kv->shape.kv_heads,
                                         .head_dim = kv->shape.head_dim,
                                         .kv_dtype = kv->shape.dtype,
                                     });
    }
    s->victims += (uint64_t)kv->shape.layers * kv->shape.kv_heads * KVA_PAGE_TOKENS;
}

static void prompt_end(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    const uint32_t stored = kva_kv_stored(seq);
    if (!kva_kv_pool_limits(&seq->spec) || stored == 0)
        return;
    fill(kv, seq, 0, 1, 0);
    fill(kv, seq, 1, stored - 1, kva_kv_pool_source(seq, 1));
}

/* Copies of pages that have slots of their own are made already: the part is behind sketch. */
static void prepare(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t first)
{
    if (!kva_kv_pool_limits(&seq->spec))
        return;
    uint32_t page = seq->prepared;
    for (; page < first && page < pages_of(&seq->spec); page++)
        fill(kv, seq, page, 1, page);
    if (page == first)
        return;
    if (!kva_kv_pool_is_full(seq))
        own_pages(kv, seq);
    for (; page < first; page++)
        replace(kv, seq, page);
    kva_copies_anew(kv, seq);
}

bool kva_kv_pool_is_full(const struct kva_kv_seq *seq)
{
    const struct state *s = state_of(seq);
    return s && s->full;
}

unsigned char *kva_kv_pool_home(const struct kva_kv_seq *seq, uint32_t index)
{
    if (kva_kv_pool_is_full(seq))
        return state_of(seq)->pages[index]->host;
    return seq->pages[kva_kv_pool_source(seq, index)]->host;
}

/* --- as part.h has them ----------------------------------------------------------------------- */

static enum kva_status check(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                             struct kva_err *err)
{
    if (spec->pool == 0 || !kv->windowed)
        return KVA_OK;
    return kva_fail_param(err, KVA_EUNSUPPORTED, "pool",
                          "a pool limit needs layers that attend to all tokens, the model's have "
                          "sliding windows: pool=0");
}

static enum kva_status init(struct kva_kv *kv, struct kva_kv_seq *seq, struct kva_err *err)
{
    struct state *s = state_of(seq);
    if (!kva_kv_pool_limits(&seq->spec))
        return KVA_OK;
    s->pages = calloc(pages_of(&seq->spec), sizeof(struct kva_page *));
    s->homes = calloc(pages_of(&seq->spec), sizeof(void *));
    if (!s->pages || !s->homes || !kva_tier_prepare(kv->tier, layout_of(kv, &seq->spec).bytes))
        return kva_fail(err, KVA_ENOMEM, "out of memory for a pool of %u tokens", seq->spec.pool);
    return KVA_OK;
}

static void finish(struct kva_kv *kv KVA_UNUSED, struct kva_kv_seq *seq)
{
    free(state_of(seq)->pages);
    free(state_of(seq)->homes);
}

static void reset(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    struct state *s = state_of(seq);
    for (uint32_t i = 0; i < seq->pool_pages; i++)
        kva_page_pool_release(kv->pages, s->pages[i]);
    seq->pool_pages = 0;
    s->full = false;
}

static uint64_t footprint(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                          const struct kva_kv_extent *extent)
{
    return kva_kv_pool_limits(spec) && extent->offloaded > 0 ? layout_of(kv, spec).bytes : 0;
}

static bool alloc(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t offloaded,
                  uint32_t end KVA_UNUSED)
{
    struct state *s = state_of(seq);
    if (s->marks || offloaded == 0 || !kva_kv_pool_limits(&seq->spec))
        return true;
    const size_t bytes = layout_of(kv, &seq->spec).bytes;
    s->marks = kva_kv_alloc_device(kv, bytes);
    seq->device_bytes += s->marks ? bytes : 0;
    return s->marks != NULL;
}

static uint32_t held(const struct kva_kv_seq *seq)
{
    return state_of(seq)->marks != NULL;
}

static size_t saved_bytes_of(const struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    return layout_of(kv, spec).layer_bytes * kv->shape.layers;
}

static uint64_t saved_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                            uint32_t prompt KVA_UNUSED)
{
    return kva_kv_pool_limits(spec) ? saved_bytes_of(kv, spec) : 0;
}

/* Whether there is anything in the marks. */
static bool is_marked(const struct kva_kv_seq *seq)
{
    return state_of(seq)->marks && seq->prefilled && kva_kv_stored(seq) > 0;
}

static void cut(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count, bool save)
{
    struct state *s = state_of(seq);
    if (count > 0 || !s->marks)
        return;
    const size_t bytes = layout_of(kv, &seq->spec).bytes;
    if (save && is_marked(seq)) {
        kva_kv_order_copies(kv);
        kva_kv_saved_put(kv, seq, 0, s->marks, saved_bytes_of(kv, &seq->spec));
    }
    kva_kv_free_device(kv, s->marks, bytes);
    seq->device_bytes -= bytes;
    s->marks = NULL;
}

static void restore(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    if (!is_marked(seq))
        return;
    kva_kv_order_copies(kv);
    kva_kv_saved_get(kv, seq, 0, state_of(seq)->marks, saved_bytes_of(kv, &seq->spec));
}

/* --- counters -------------------------------------------------------------------------------- */

static const struct kva_counter pool_victims = {
    .name = "pool_victims",
    .unit = "rows",
    .help = "Rows in host memory that others took the place of.",
    .field = "pool_victims",
};

static const struct kva_counter *const counters[] = {&pool_victims, NULL};

static void count(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    struct state *s = state_of(seq);
    kva_kv_count(kv, seq, &pool_victims, s->victims);
    s->victims = 0;
}

const struct kva_kv_part kva_kv_part_pool = {
    .counters = counters,
    .state_bytes = sizeof(struct state),
    .check = check,
    .init = init,
    .finish = finish,
    .reset = reset,
    .footprint = footprint,
    .alloc = alloc,
    .held = held,
    .cut = cut,
    .saved_bytes = saved_bytes,
    .restore = restore,
    .prompt_end = prompt_end,
    .prepare = prepare,
    .count = count,
};
