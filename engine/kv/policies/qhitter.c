/* qhitter.c - Q-Hitter: h2o's store in few bits, and in it tokens that few bits suit.
 *
 * Keys and values are coded token by token, once, when a token comes to the store. Of the heavy
 * tokens `pure` are those with the largest mass; the others are those for which
 *
 *     lambda * norm(mass) + (1 - lambda) * norm(-error)
 *
 * is largest, over the tokens of a KV head, where error is the relative squared error of a token's
 * key and value. At 16 bits there is no error, and the store is h2o's. */
#include "engine/kv/part.h"
#include "engine/kv/parts/kept.h"
#include "engine/kv/policy.h"

static const uint32_t bit_widths[] = {2, 3, 4, 8, 16, 0};

/* The paper's 15% + 5%, of which 7% by attention alone, and its best lambda (figure 9). */
static const struct kva_kv_policy_setting settings[] = {
    {KVA_SETTING_BITS, 4, 4, bit_widths},
    {KVA_SETTING_HEAVY, KVA_KV_PERCENT | 15, KVA_KV_PERCENT | 15, NULL},
    {KVA_SETTING_PURE, KVA_KV_PERCENT | 7, KVA_KV_PERCENT | 7, NULL},
    {KVA_SETTING_RECENT, KVA_KV_PERCENT | 5, KVA_KV_PERCENT | 5, NULL},
    {KVA_SETTING_SINKS, 4, 0, NULL},
    {KVA_SETTING_LAMBDA, 50, 50, NULL},
    {KVA_SETTING_NORM, KVA_NORM_RANK, KVA_NORM_MINMAX, NULL},
    {KVA_SETTING_CODING, KVA_KV_CODING_TURNED, KVA_KV_CODING_PLAIN, NULL},
    {KVA_SETTING_MASS, KVA_MASS_LAST, KVA_MASS_ALL, NULL},
    {KVA_SETTING_POSITIONS, KVA_POSITIONS_ORIGINAL, KVA_POSITIONS_ORIGINAL, NULL},
};

static const struct kva_kv_part *const parts[] = {&kva_kv_part_prompt_stage, &kva_kv_part_kept,
                                                  &kva_kv_part_resident, NULL};

const struct kva_kv_policy kva_kv_policy_qhitter = {
    .name = "q-hitter",
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
