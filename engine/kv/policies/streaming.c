/* streaming.c - StreamingLLM: the first tokens (attention sinks) and a window of the newest ones, in
 * 16 bits; what lies between is dropped for good, on the device and on the host.
 *
 *     sequence    s s s s | . . . . . . . . . . . . | w w w w w w w w | q
 *     positions   0     3 |        dropped          | o             t | t + 1     original
 *                 0     3                           | 4      t - o + 4            index
 *
 * Prompts are computed exactly; then the kept set is made of them. The window moves by whole pages:
 * it holds between `window` and window + 63 tokens.
 *
 * Attention knows differences of positions alone. Those within the window are right whatever was
 * dropped before it, so keys stay as they were rotated, and only before the sinks does a query have
 * to look as if it were nearer (`rolled`). Learned positions are added to a token when it comes in:
 * it gets its index among those kept then. */
#include "engine/kv/part.h"
#include "engine/kv/policy.h"

/* The paper's caches are of 4 + 1020 tokens, and of others. */
static const struct kva_kv_policy_setting settings[] = {
    {KVA_SETTING_WINDOW, 1024, 1024, NULL},
    {KVA_SETTING_SINKS, 4, 4, NULL},
    {KVA_SETTING_POSITIONS, KVA_POSITIONS_INDEX, KVA_POSITIONS_INDEX, NULL},
};

static const struct kva_kv_part *const parts[] = {&kva_kv_part_prompt_stage, &kva_kv_part_rows,
                                                  &kva_kv_part_resident, NULL};

static uint32_t positions_used(const struct kva_kv_spec *spec, uint32_t tokens)
{
    uint32_t kept = spec->sinks + spec->window + KVA_PAGE_TOKENS;
    return spec->positions == KVA_POSITIONS_INDEX ? kva_min_u32(tokens, kept) : tokens;
}

static uint32_t rolled(const struct kva_kv_seq *seq)
{
    if (seq->offloaded == 0 || seq->spec.positions != KVA_POSITIONS_INDEX)
        return 0;
    return seq->offloaded * KVA_PAGE_TOKENS - seq->spec.sinks;
}

const struct kva_kv_policy kva_kv_policy_streaming = {
    .name = "streaming",
    .exactness = KVA_KV_EXACT_PROMPT,
    .settings = settings,
    .setting_count = KVA_COUNT_OF(settings),
    .parts = parts,
    .offloaded = kva_kv_offload_behind_window,
    .drops = true,
    .positions_used = positions_used,
    .rolled = rolled,
};
