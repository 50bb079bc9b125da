/* infinigen.c - InfiniGen: everything on the host in 16 bits, partial keys on the device, and the
 * rows that a layer will need chosen by them while the layer before it runs (docs/kv.md).
 *
 * The residual stream changes little from layer to layer, so layer i's norm and query weights,
 * applied to the input of layer i - 1, give about the queries that layer i will have (4.1, 4.3).
 * Their product with a few columns of the keys says which tokens come near the largest score of
 * each head; those are fetched, and due at layer i of the same step. */
#include "engine/kv/part.h"
#include "engine/kv/parts/ahead.h"
#include "engine/kv/parts/columns.h"
#include "engine/kv/parts/pool.h"
#include "engine/kv/policy.h"

/* InfiniGen 4.3 and 5.1: alpha 4 for OPT (5 for Llama 2), a ratio of .3, 20% at most; the first
 * layers are whole. */
static const struct kva_kv_policy_setting settings[] = {
    {KVA_SETTING_ALPHA, 4, 4, NULL},
    {KVA_SETTING_CAP, KVA_KV_PERCENT | 20, KVA_KV_PERCENT | 20, NULL},
    {KVA_SETTING_PARTIAL, 30, 30, NULL},
    {KVA_SETTING_PARTIAL_BITS, 8, 16, NULL},
    {KVA_SETTING_SKEW, KVA_SKEW_AFTER, KVA_SKEW_AFTER, NULL},
    {KVA_SETTING_COLUMNS, KVA_COLUMNS_STATIC, KVA_COLUMNS_PROMPT, NULL},
    {KVA_SETTING_POOL, 0, 0, NULL},
    {KVA_SETTING_VICTIM, KVA_VICTIM_COUNTER, KVA_VICTIM_COUNTER, NULL},
    {KVA_SETTING_WINDOW, 64, 64, NULL},
    {KVA_SETTING_SINKS, 4, 0, NULL},
    {KVA_SETTING_MIN_TOKENS, 1024, 0, NULL},
    {KVA_SETTING_SKIP_LAYERS, 2, 2, NULL},
};

static const struct kva_kv_part *const parts[] = {
    &kva_kv_part_prompt_stage,
    &kva_kv_part_columns,
    &kva_kv_part_sketch,
    &kva_kv_part_pool,
    &kva_kv_part_ahead,
    &kva_kv_part_resident,
    NULL,
};

const struct kva_kv_policy kva_kv_policy_infinigen = {
    .name = "infinigen",
    .exactness = KVA_KV_EXACT_PROMPT,
    .settings = settings,
    .setting_count = KVA_COUNT_OF(settings),
    .parts = parts,
    .offloaded = kva_kv_offload_behind_window,
    .computed = kva_columns_computed,
    .limits = kva_kv_pool_limits,
    .stored = kva_kv_pool_stored,
    .gone = kva_kv_pool_gone,
    .host_pages = kva_kv_pool_host_pages,
    .rehearses = kva_ahead_rehearses,
};
