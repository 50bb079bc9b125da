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

/* The paper halves a budget of 20% of the prompt; it has no sinks of its own. */
static const struct kva_kv_policy_setting settings[] = {
    {KVA_SETTING_HEAVY, KVA_KV_PERCENT | 10, KVA_KV_PERCENT | 10, NULL},
    {KVA_SETTING_RECENT, KVA_KV_PERCENT | 10, KVA_KV_PERCENT | 10, NULL},
    {KVA_SETTING_SINKS, 4, 0, NULL},
    {KVA_SETTING_MASS, KVA_MASS_LAST, KVA_MASS_ALL, NULL},
    {KVA_SETTING_POSITIONS, KVA_POSITIONS_ORIGINAL, KVA_POSITIONS_ORIGINAL, NULL},
};

static const struct kva_kv_part *const parts[] = {&kva_kv_part_prompt_stage, &kva_kv_part_kept,
                                                  &kva_kv_part_resident, NULL};

const struct kva_kv_policy kva_kv_policy_h2o = {
    .name = "h2o",
    .exactness = KVA_KV_EXACT_PROMPT,
    .settings = settings,
    .setting_count = KVA_COUNT_OF(settings),
    .parts = parts,
    .offloaded = kva_kept_offloaded,
    .drops = true,
    .resolved = kva_kept_resolved,
    .stored = kva_kept_stored,
    .computed = kva_kept_computed,
    .positions_used = kva_kept_positions_used,
    .rolled = kva_kept_rolled,
};
