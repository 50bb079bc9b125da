/* kept_layout.c - a store of kept tokens: bytes and offsets, and what policies of it answer. */
#include "engine/kv/parts/kept_internal.h"

#define WINDOW KVA_PAGE_TOKENS

/* --- layout ---------------------------------------------------------------------------------- */

uint32_t kva_kept_pages_max(const struct kva_kv_spec *spec)
{
    uint64_t tokens = (uint64_t)spec->sinks + spec->heavy + spec->recent;
    tokens -= kva_min_u32(spec->recent, WINDOW); /* the window has them */
    uint32_t pages = (uint32_t)kva_div_up(tokens > 0 ? tokens : 1, KVA_PAGE_TOKENS);
    if (spec->tokens_max == 0)
        return pages;
    return kva_min_u32(pages, kva_max_u32(kva_kept_offloaded(spec, spec->tokens_max), 1));
}

/* Learned positions are in a token from the beginning; but rows that come in pieces are weighed in 16
 * bits alone. */
bool kva_kept_rolls(const struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    return spec->positions == KVA_POSITIONS_INDEX && (kv->rotary.inv_freq || kva_kept_codes(spec));
}

/* Where keys are not rotated: by nothing. */
struct kva_keep_rotary kva_kept_rotary(const struct kva_kv *kv)
{
    static const float still[] = {0};
    return kv->rotary.inv_freq ? kv->rotary : (struct kva_keep_rotary){still, 2};
}

bool kva_kept_codes(const struct kva_kv_spec *spec)
{
    return spec->bits > 0 && spec->bits < 16;
}

struct kva_lowbit_format kva_kept_format(const struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    if (!kva_kept_codes(spec))
        return (struct kva_lowbit_format){0};
    return kva_lowbit_per_token(spec->bits, kv->shape.head_dim,
                                spec->coding == KVA_KV_CODING_PLAIN ? KVA_CODING_PLAIN
                                                                    : KVA_CODING_TURNED);
}

size_t kva_kept_block_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    if (!kva_kept_codes(spec))
        return kv->shape.block_bytes;
    return kva_lowbit_block_bytes(kva_kept_format(kv, spec), kv->shape.kv_heads,
                                  kv->shape.head_dim);
}

size_t kva_kept_page_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    return kva_kept_block_bytes(kv, spec) * kv->shape.layers;
}

/* Items are whole chunks of the tier, so that there are few sizes of them. */
static size_t whole_chunks(const struct kva_kv *kv, size_t bytes)
{
    return kva_div_up(bytes, kv->shape.page_bytes) * kv->shape.page_bytes;
}

struct kva_kept_layout kva_kept_layout_of(const struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    uint32_t heads = kv->shape.kv_heads, slots = kva_kept_slots(spec);
    size_t all = (size_t)heads * slots * sizeof(uint32_t);
    bool codes = kva_kept_codes(spec), rolls = kva_kept_rolls(kv, spec);
    struct kva_kept_layout l = {
        .scratch_bytes = kva_keep_scratch_bytes(heads, slots, KVA_PAGE_TOKENS),
    };
    l.positions = kva_kv_lay_piece(&l.layer_bytes, all);
    l.mass = kva_kv_lay_piece(&l.layer_bytes, all);
    l.error = kva_kv_lay_piece(&l.layer_bytes, codes ? all : 0);
    l.mean = kva_kv_lay_piece(&l.layer_bytes,
                              codes ? (size_t)heads * kv->shape.head_dim * sizeof(float) : 0);
    l.window = kva_kv_lay_piece(&l.layer_bytes, (size_t)heads * KVA_KEPT_WINDOW * sizeof(float));
    l.bytes = l.layer_bytes * kv->shape.layers;
    l.places = kva_kv_lay_piece(
        &l.bytes,
        rolls ? (size_t)heads * slots * sizeof(struct kva_roll_place) * kv->shape.layers : 0);
    l.index = kva_kv_lay_piece(&l.bytes, rolls ? all : 0);
    l.weights = kva_kv_lay_piece(&l.bytes, codes && !rolls ? all : 0);
    const uint32_t seen = (codes && !rolls ? 0 : slots) + KVA_KEPT_WINDOW;
    l.splits = (uint32_t)kva_div_up(seen, KVA_ATTEND_SPLIT_TOKENS) + 1; /* it begins anywhere */
    l.scores = kva_kv_lay_piece(&l.bytes, (size_t)kv->heads * l.splits * KVA_ATTEND_SPLIT_TOKENS *
                                              sizeof(float));
    l.scratch = kva_kv_lay_piece(&l.bytes, l.scratch_bytes);
    const size_t left = whole_chunks(kv, l.bytes) - l.bytes;
    l.scratch_layers =
        1 + (uint32_t)kva_min_size(left / l.scratch_bytes, KVA_KEPT_LAYERS_AT_ONCE - 1);
    l.bytes = whole_chunks(kv, l.bytes);
    return l;
}

struct kva_kept_prompt kva_kept_prompt_of(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                                          uint32_t pages)
{
    uint32_t heads = kv->shape.kv_heads;
    struct kva_kept_prompt l = {.stride = pages * KVA_PAGE_TOKENS};
    size_t all = (size_t)heads * l.stride * sizeof(uint32_t);
    l.scratch_bytes = kva_keep_scratch_bytes(heads, 0, l.stride);
    l.mass = kva_kv_lay_piece(&l.bytes, all);
    l.slots = kva_kv_lay_piece(&l.bytes, all);
    l.error = kva_kv_lay_piece(&l.bytes, kva_kept_codes(spec) ? all : 0);
    l.scratch = kva_kv_lay_piece(&l.bytes, l.scratch_bytes);
    l.bytes = whole_chunks(kv, l.bytes);
    return l;
}

/* --- what policies answer -------------------------------------------------------------------- */

uint32_t kva_kept_computed(const struct kva_kv_spec *spec)
{
    return spec->mass == KVA_MASS_ALL ? UINT32_MAX : KVA_KV_OBSERVED;
}

void kva_kept_resolved(struct kva_kv_spec *spec)
{
    spec->window = WINDOW;
    spec->recent = kva_max_u32(spec->recent, WINDOW);
}

uint32_t kva_kept_offloaded(const struct kva_kv_spec *spec KVA_UNUSED, uint32_t tokens)
{
    return tokens > WINDOW ? (tokens - WINDOW) / KVA_PAGE_TOKENS : 0;
}

uint32_t kva_kept_stored(const struct kva_kv_spec *spec, uint32_t offloaded)
{
    return kva_min_u32(kva_kept_pages_max(spec), offloaded);
}

/* An amount in percent is of a prompt, and a prompt has no more tokens than the context. */
uint32_t kva_kept_positions_used(const struct kva_kv_spec *spec, uint32_t tokens)
{
    bool percent = (spec->heavy | spec->recent) & KVA_KV_PERCENT;
    if (percent || spec->positions != KVA_POSITIONS_INDEX)
        return tokens;
    uint64_t kept = (uint64_t)kva_kept_pages_max(spec) * KVA_PAGE_TOKENS + KVA_KEPT_WINDOW;
    return kept < tokens ? (uint32_t)kept : tokens;
}

uint32_t kva_kept_rolled(const struct kva_kv_seq *seq)
{
    bool rolls = seq->spec.positions == KVA_POSITIONS_INDEX;
    return rolls ? (seq->offloaded - kva_kv_stored(seq)) * KVA_PAGE_TOKENS : 0;
}
