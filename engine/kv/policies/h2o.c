/* h2o.c - H2O: a store of the tokens that were attended to most, others in each layer and KV head,
 * and a window of the newest ones, in 16 bits; what is in neither is dropped for good, on the device
 * and on the host.
 *
 *     sequence   s s s s | . h . . h h . . . h . . | r r r r | w w w w | q
 *                `------- the store: sinks, heavy, recent ---' window
 *
 * Prompts are computed exactly; then the store is made of them. The window moves by whole pages: a
 * page that leaves gives its tokens to the store, which keeps the sinks, the `recent` newest tokens
 * and, of the others, those with the largest sums of attention probabilities (mass). Stores are
 * whole pages: what rounding leaves is for heavy tokens. */
#include "engine/kv/part.h"
#include "engine/kv/parts/kept.h"
#include "engine/kv/policy.h"

#define WINDOW KVA_PAGE_TOKENS

/* The paper halves a budget of 20% of the prompt; it has no sinks of its own. */
static const struct kva_kv_policy_setting settings[] = {
    {KVA_SETTING_HEAVY, KVA_KV_PERCENT | 10, KVA_KV_PERCENT | 10},
    {KVA_SETTING_RECENT, KVA_KV_PERCENT | 10, KVA_KV_PERCENT | 10},
    {KVA_SETTING_SINKS, 4, 0},
    {KVA_SETTING_MASS, KVA_MASS_LAST, KVA_MASS_ALL},
    {KVA_SETTING_POSITIONS, KVA_POSITIONS_ORIGINAL, KVA_POSITIONS_ORIGINAL},
};

static const struct kva_kv_part *const parts[] = {&kva_kv_part_prompt_stage, &kva_kv_part_kept,
                                                  &kva_kv_part_resident, NULL};

static void resolved(struct kva_kv_spec *spec)
{
    spec->window = WINDOW;
    spec->recent = kva_max_u32(spec->recent, WINDOW);
}

static uint32_t offloaded(const struct kva_kv_spec *spec KVA_UNUSED, uint32_t tokens)
{
    return tokens > WINDOW ? (tokens - WINDOW) / KVA_PAGE_TOKENS : 0;
}

static uint32_t stored(const struct kva_kv_spec *spec, uint32_t pages)
{
    return kva_min_u32(kva_kept_pages_max(spec), pages);
}

/* An amount in percent is of a prompt, and a prompt has no more tokens than the context. */
static uint32_t positions_used(const struct kva_kv_spec *spec, uint32_t tokens)
{
    bool percent = (spec->heavy | spec->recent) & KVA_KV_PERCENT;
    if (percent || spec->positions != KVA_POSITIONS_INDEX)
        return tokens;
    uint64_t kept = (uint64_t)kva_kept_pages_max(spec) * KVA_PAGE_TOKENS + 2 * WINDOW;
    return kept < tokens ? (uint32_t)kept : tokens;
}

static uint32_t rolled(const struct kva_kv_seq *seq)
{
    bool rolls = seq->spec.positions == KVA_POSITIONS_INDEX;
    return rolls ? (seq->offloaded - kva_kv_stored(seq)) * KVA_PAGE_TOKENS : 0;
}

const struct kva_kv_policy kva_kv_policy_h2o = {
    .name = "h2o",
    .exactness = KVA_KV_EXACT_PROMPT,
    .settings = settings,
    .setting_count = KVA_COUNT_OF(settings),
    .parts = parts,
    .offloaded = offloaded,
    .drops = true,
    .resolved = resolved,
    .stored = stored,
    .computed = kva_kept_computed,
    .positions_used = positions_used,
    .rolled = rolled,
};
