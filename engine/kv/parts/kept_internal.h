/* kept_internal.h - what the files of the part share:
 *
 *     kept.c         memory, and what survives a suspension
 *     kept_layout.c  bytes and offsets
 *     kept_pass.c    mass within a pass, and what is kept
 *
 * Thread rule: engine thread. */
#ifndef KVA_ENGINE_KV_PARTS_KEPT_INTERNAL_H
#define KVA_ENGINE_KV_PARTS_KEPT_INTERNAL_H

#include "engine/kv/part.h"
#include "engine/kv/parts/kept.h"

/* Pages of the window, with the one that is about to leave, and their tokens. */
#define KVA_KEPT_WINDOW_PAGES 2u
#define KVA_KEPT_WINDOW       (KVA_KEPT_WINDOW_PAGES * KVA_PAGE_TOKENS)

/* Layers of a page that leaves that are decided on together, at most: a KV head of one is a block of
 * threads, or a thread's item. */
#define KVA_KEPT_LAYERS_AT_ONCE 8u

/* Of a sequence. */
struct kva_kept_state {
    void **pages;          /* [pages max]: of the store */
    void **rolled;         /* the same with keys as attention wants them; NULL: they are so */
    uint32_t page_count;   /* the first so many are there, of both */
    unsigned char *marks;  /* device: struct kva_kept_layout; NULL: not there */
    unsigned char *prompt; /* device: struct kva_kept_prompt; NULL: not there */
    const void **from;     /* [pages of the prompt]: blocks of one call */
    bool lost_rolled; /* the prompt was suspended: `rolled` of layers that are through is gone */
};

/* Offsets within `marks`: what is saved comes first, layer by layer. */
struct kva_kept_layout {
    size_t positions, mass, error, mean, window; /* from the layer's beginning */
    size_t layer_bytes;
    size_t places;   /* for rolling: [layers][kv_heads][slots] */
    size_t index;    /* the same, of one layer at a time */
    size_t weights;  /* what a row gave to slots in few bits: the same */
    size_t scores;   /* of a row with what it sees in 16 bits: struct kva_attend_scores */
    uint32_t splits; /* of them */
    size_t scratch;  /* of keep: of as many layers at a time as what rounding leaves has room for */
    size_t scratch_bytes;    /* of a layer */
    uint32_t scratch_layers; /* KVA_KEPT_LAYERS_AT_ONCE at most */
    size_t bytes;
};

/* Offsets within `prompt`: what is saved comes first. */
struct kva_kept_prompt {
    uint32_t stride; /* of mass and slots, in tokens */
    size_t mass;     /* of one layer at a time, as the rest */
    size_t slots;
    size_t error;
    size_t scratch;
    size_t scratch_bytes;
    size_t bytes;
};

/* Of the cache: descriptors of one call, and what sequences do not need by themselves. */
struct kva_kept_cache {
    struct kva_mass_seq *seqs; /* [sequences_max (1 + KVA_KEPT_WINDOW_PAGES)]: stores, pages */
    struct kva_attend_range *ranges;    /* of each */
    struct kva_accumulate_seq *weighed; /* [sequences_max] */
    unsigned char *zeros;               /* device */
    uint32_t *slots; /* device [KVA_KEPT_LAYERS_AT_ONCE][kv_heads][KVA_PAGE_TOKENS]: of a page that
                        leaves */
    float *errors;   /* the same: theirs */
};

static inline struct kva_kept_state *kva_kept_state_of(const struct kva_kv_seq *seq)
{
    return kva_kv_part_state(seq, &kva_kv_part_kept);
}

static inline struct kva_kept_cache *kva_kept_cache_of(const struct kva_kv *kv)
{
    return kva_kv_part_cache(kv, &kva_kv_part_kept);
}

static inline uint32_t kva_kept_slots(const struct kva_kv_spec *spec)
{
    return kva_kept_pages_max(spec) * KVA_PAGE_TOKENS;
}

/* Numbers that a page of the window has in a layer. */
static inline size_t kva_kept_page_marks(const struct kva_kv *kv)
{
    return (size_t)kv->shape.kv_heads * KVA_PAGE_TOKENS;
}

struct kva_kept_layout kva_kept_layout_of(const struct kva_kv *kv, const struct kva_kv_spec *spec);

/* Of a prompt of so many pages. */
struct kva_kept_prompt kva_kept_prompt_of(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                                          uint32_t pages);

/* Whether the store is in few bits, and as what; bits 0: in 16. */
bool kva_kept_codes(const struct kva_kv_spec *spec);
struct kva_lowbit_format kva_kept_format(const struct kva_kv *kv, const struct kva_kv_spec *spec);

/* One layer of a store page, and all of them. */
size_t kva_kept_block_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec);
size_t kva_kept_page_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec);

/* How keys are rotated in pages that are made of the store. */
struct kva_keep_rotary kva_kept_rotary(const struct kva_kv *kv);

/* Whether pages made of the store attend in its place. */
bool kva_kept_rolls(const struct kva_kv *kv, const struct kva_kv_spec *spec);

#define KVA_KEPT_ZERO_BYTES ((size_t)16 << 10)

/* --- kept_pass.c ------------------------------------------------------------------------------ */

/* The mean key of a layer, without which a store in few bits has its keys; NULL: they are whole. */
float *kva_kept_mean(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer);

void kva_kept_layer_begin(const struct kva_kv_part *self, struct kva_kv *kv,
                          struct kva_kv_pass *pass, uint32_t layer);
void kva_kept_attended(const struct kva_kv_part *self, struct kva_kv *kv, struct kva_kv_pass *pass,
                       const struct kva_kv_attention *attention);
void kva_kept_prompt_layer(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t layer);
void kva_kept_prepare(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t first);

/* The rolled pages are made of the store's; `anew`: nothing is in them yet. */
void kva_kept_roll(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t layer, uint32_t offloaded,
                   bool anew);

#endif
