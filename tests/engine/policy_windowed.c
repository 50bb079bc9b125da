/* policy_windowed.c - sinks and a window of the newest tokens attend; what lies between is dropped
 * from the device (StreamingLLM's set, at the tokens' own positions). A part of its own has no
 * memory and no ranges: it counts what was dropped, and when. */
#include "tests/engine/policy_windowed.h"

#include "engine/kv/part.h"

static const struct kva_kv_policy_setting settings[] = {
    {KVA_SETTING_WINDOW, 64, 64, NULL},
    {KVA_SETTING_SINKS, 4, 4, NULL},
};

/* --- the part -------------------------------------------------------------------------------- */

static const struct kva_counter dropped_pages = {
    .name = "dropped_pages",
    .unit = "pages",
    .help = "Pages that left the device while decoding, with nothing in their place.",
    .field = "dropped_pages",
};

static const struct kva_counter dropped_passes = {
    .name = "dropped_passes",
    .unit = "passes",
    .help = "Passes over sequences that drop pages.",
};

static const struct kva_counter *const counters[] = {&dropped_pages, &dropped_passes, NULL};

struct state {
    uint32_t first; /* pages [0, first) are gone */
};

struct cache {
    uint64_t passes; /* not yet counted */
};

static const struct kva_kv_part part_dropped;

static uint64_t footprint(const struct kva_kv *kv KVA_UNUSED,
                          const struct kva_kv_spec *spec KVA_UNUSED,
                          const struct kva_kv_extent *extent KVA_UNUSED)
{
    return 0;
}

static bool alloc(struct kva_kv *kv KVA_UNUSED, struct kva_kv_seq *seq KVA_UNUSED,
                  uint32_t offloaded KVA_UNUSED, uint32_t end KVA_UNUSED)
{
    return true;
}

static uint32_t held(const struct kva_kv_seq *seq KVA_UNUSED)
{
    return 0;
}

static void cut(struct kva_kv *kv KVA_UNUSED, struct kva_kv_seq *seq KVA_UNUSED,
                uint32_t count KVA_UNUSED, bool save KVA_UNUSED)
{
}

static void prompt_end(struct kva_kv *kv KVA_UNUSED, struct kva_kv_seq *seq)
{
    struct state *state = kva_kv_part_state(seq, &part_dropped);
    state->first = seq->offloaded;
}

static void leave(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t first)
{
    struct state *state = kva_kv_part_state(seq, &part_dropped);
    kva_kv_count(kv, seq, &dropped_pages, first - state->first);
    state->first = first;
}

static void pass_begin(const struct kva_kv_part *self, struct kva_kv *kv,
                       struct kva_kv_pass *pass KVA_UNUSED)
{
    struct cache *cache = kva_kv_part_cache(kv, self);
    cache->passes++;
}

static void locate(const struct kva_kv *kv KVA_UNUSED, struct kva_kv_rows *rows KVA_UNUSED,
                   uint32_t layer KVA_UNUSED)
{
}

static void step_begin(const struct kva_kv_part *self, struct kva_kv *kv)
{
    struct cache *cache = kva_kv_part_cache(kv, self);
    kva_counts_add(&kv->counters.counts, &dropped_passes, cache->passes);
    cache->passes = 0;
}

static const struct kva_kv_part part_dropped = {
    .counters = counters,
    .state_bytes = sizeof(struct state),
    .cache_bytes = sizeof(struct cache),
    .footprint = footprint,
    .alloc = alloc,
    .held = held,
    .cut = cut,
    .prompt_end = prompt_end,
    .leave = leave,
    .pass_begin = pass_begin,
    .locate = locate,
    .step_begin = step_begin,
};

/* --- the policy ------------------------------------------------------------------------------ */

static const struct kva_kv_part *const parts[] = {&kva_kv_part_prompt_stage, &part_dropped,
                                                  &kva_kv_part_rows, &kva_kv_part_resident, NULL};

const struct kva_kv_policy policy_windowed = {
    .name = "windowed",
    .exactness = KVA_KV_INEXACT,
    .settings = settings,
    .setting_count = KVA_COUNT_OF(settings),
    .parts = parts,
    .offloaded = kva_kv_offload_behind_window,
};
