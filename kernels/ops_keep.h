/* ops_keep.h - kept rows: a store of fixed size per KV head, of tokens that were worth most, in
 * place of all of them (H2O, Q-Hitter).
 *
 *   attend_mass   how much of the attention of some rows each token had, added up
 *   mean_keys     what keys have in common, and are coded without
 *   row_error     what keeping a token in few bits would cost
 *   keep          which of the tokens in the store, and of those that come, stay, and in which slot
 *   store_rows    the rows of those that come, into their slots
 *   use_rows      what is in a slot has been used: its mass says how often, or when last
 *   roll_rows     the store as 16-bit blocks whose keys are rotated by their index among the kept
 *
 * A store is ordinary KV blocks, of 16 bits or of few with KVA_KEYS_PER_TOKEN, whose slots hold
 * arbitrary tokens, other ones for each KV head: slot s is token s % KVA_PAGE_TOKENS of block
 * s / KVA_PAGE_TOKENS. Attention does not ask for the order of tokens, so `attend` and
 * `attend_lowbit` read a store as they read pages, and `weigh` weighs it. Rows never move; a slot is
 * written again when its token goes. A store fills from slot 0 on, every KV head alike.
 *
 * What ops.h promises holds here. */
#ifndef KVA_KERNELS_OPS_KEEP_H
#define KVA_KERNELS_OPS_KEEP_H

#include "kernels/ops_attend.h"

#define KVA_NO_SLOT UINT32_MAX

/* --- mass ------------------------------------------------------------------------------------ */

/* Some rows of a sequence, and some tokens before them, as kva_attend_seq has them; of several
 * entries with the same rows, one may be about the store and one about pages. */
struct kva_mass_seq {
    uint32_t row_first;
    uint32_t row_count;
    uint32_t position_first; /* of row_first; a row at position p sees tokens t <= p. In a store,
                                where tokens are slots: past the last of them */
    uint32_t range_first;    /* index into args.ranges; ranges ascend and are disjoint */
    uint32_t range_count;
    float *mass;         /* [kv_heads][mass_stride]: of token t at t - mass_first; device */
    uint32_t mass_first; /* <= the first token of the ranges */
    uint32_t mass_stride;
    struct kva_attend_scores scores; /* what attend kept for the one row */
};

/* mass[kv_head][t - mass_first] += the probabilities that the rows' query heads which share the KV
 * head gave to token t, for the tokens of the ranges; normalised over all partial results, of which
 * only m and e are read. One addition per row and head, rows ascending, the heads of a row
 * ascending: so the bits do not depend on how rows are cut into calls. A row that saw nothing adds
 * nothing. Scores are those of `attend` up to rounding. */
struct kva_attend_mass_args {
    const void *q; /* act [rows, heads, head_dim], row stride q_stride elements */
    const struct kva_partial *partials;    /* host [partial_count], of the same rows */
    const struct kva_mass_seq *seqs;       /* host [seq_count]; their arrays do not overlap */
    const struct kva_attend_range *ranges; /* host */
    const void *const *blocks;             /* host: device addresses of 16-bit blocks */
    size_t block_offset_bytes;             /* added to every block address */
    uint32_t partial_count;
    uint32_t seq_count;
    uint32_t q_stride;
    uint32_t heads;
    uint32_t kv_heads; /* divides heads */
    uint32_t head_dim;
    enum kva_dtype kv_dtype;
    float scale;
};

/* --- the mean key ---------------------------------------------------------------------------- */

/* A channel's mean counts from so many standard deviations on: squared. */
#define KVA_MEAN_KEY_DEVIATIONS_2 64.0f

/* Means that count are taken off where they have, squared and added up, more than so many times the
 * variance of all channels of the head. Heads that need it have 30 to 4000 times it (Qwen2.5), others
 * 5 at most (docs/results/kept.md). */
#define KVA_MEAN_KEY_SHARE 16.0f

/* mean[kv_head] = of the keys of tokens [first, end) of a block the mean of each channel that hardly
 * changes from token to token: mean^2 > KVA_MEAN_KEY_DEVIATIONS_2 * variance; of other channels 0.
 * All are 0 of a KV head where these means outweigh what tells its keys apart by less than
 * KVA_MEAN_KEY_SHARE. Sums are by ascending token and channel; numbers beyond f16 count as its end,
 * what is not a number as 0.
 *
 * A projection with a bias makes such channels, some of them a hundred times larger than what tells
 * tokens apart. Levels that reach over them leave only noise of the rest. So keys are coded without
 * them, and queries bring them back: q.k = q.(k - mean) + q.mean, and the second part is one number
 * for all tokens of a store. The keys of sinks, which are unlike the others and have most of the
 * attention, become larger without a mean that they do not share: so nothing is taken off where
 * little would be gained. */
struct kva_mean_keys_args {
    const void *block; /* 16 bits, in either tier */
    float *mean;       /* out: [kv_heads][head_dim]; device */
    size_t block_offset_bytes;
    uint32_t first, end; /* first < end <= KVA_PAGE_TOKENS */
    uint32_t kv_heads;
    uint32_t head_dim;
    enum kva_dtype kv_dtype;
};

/* --- error ----------------------------------------------------------------------------------- */

/* Tokens of some consecutive 16-bit blocks. */
struct kva_row_error_seq {
    const void *const *blocks; /* host [blocks], in either tier: token i is token
                                  i % KVA_PAGE_TOKENS of blocks[i / KVA_PAGE_TOKENS] */
    float *error;              /* out: [kv_heads][stride]; device */
    const float *mean;         /* [kv_heads][head_dim]: taken off keys; device. NULL: nothing is */
    uint32_t count;
    uint32_t stride; /* >= count */
};

/* error[kv_head][i] = |k - k'|^2 / |k|^2 + |v - v'|^2 / |v|^2, where k is a key without the mean, and
 * k', v' are what `format` makes of k and v (kv_layout.h); a vector of zeros has 0. Numbers beyond
 * f16 count as its end. */
struct kva_row_error_args {
    const struct kva_row_error_seq *seqs; /* host [seq_count] */
    size_t block_offset_bytes;            /* added to every block address */
    uint32_t seq_count;
    uint32_t kv_heads;
    uint32_t head_dim;
    enum kva_dtype kv_dtype;
    struct kva_lowbit_format format; /* KVA_KEYS_PER_TOKEN */
};

/* --- what stays ------------------------------------------------------------------------------ */

enum kva_keep_score {
    KVA_KEEP_MASS, /* the mass */
    /* lambda * norm(mass) + (1 - lambda) * norm(-error): */
    KVA_KEEP_MINMAX, /* norm(x) = (x - min) / (max - min), 0 if all are equal (Q-Hitter) */
    KVA_KEEP_RANK,   /* norm(x) = the entries with less than x, divided by all but one: no single
                        entry, such as a sink, flattens the others */
};

/* The tokens of a store, by slot. All addresses are device addresses. */
struct kva_keep_store {
    uint32_t *positions; /* [kv_heads][slots] */
    float *mass;         /* [kv_heads][slots] */
    float *error;        /* [kv_heads][slots]; NULL with KVA_KEEP_MASS, if nobody wants it */
    uint32_t slots;      /* capacity */
};

/* What is in the store, slots [0, filled), and `count` tokens that come. */
struct kva_keep_seq {
    struct kva_keep_store store;
    const float *mass;       /* [kv_heads][stride], of the tokens that come; NULL: 0 */
    const float *error;      /* [kv_heads][stride]; NULL with KVA_KEEP_MASS: 0 */
    uint32_t *to;            /* out: [kv_heads][count]: the slot of the token, or KVA_NO_SLOT */
    uint32_t filled;         /* <= slots */
    uint32_t count;          /* tokens that come, at positions position_first + i */
    uint32_t stride;         /* of mass and error, >= count */
    uint32_t position_first; /* past all positions in the store */
    uint32_t sinks;          /* tokens at positions before it stay */
    uint32_t recent;         /* of all, the tokens at so many newest positions stay: those at
                                position_first + count - recent and later */
    uint32_t pure;           /* of what else stays, so many go by mass alone */
    bool newer;              /* ties go to the higher position, not to the lower one */
};

static inline uint32_t kva_keep_filled(const struct kva_keep_seq *seq)
{
    size_t all = (size_t)seq->filled + seq->count;
    return all < seq->store.slots ? (uint32_t)all : seq->store.slots;
}

/* Scratch memory of one sequence. */
static inline size_t kva_keep_scratch_bytes(uint32_t kv_heads, uint32_t filled, uint32_t count)
{
    return (size_t)kv_heads * ((size_t)filled + count) * (3 * sizeof(uint64_t));
}

/* min(slots, filled + count) of them stay, the same number in every KV head: first those that are
 * protected (sinks, recent: no more than there are slots), then `pure` by mass, then by score; ties
 * go to the lower position, or to the higher one. Min, max and ranks are over all of a KV head's entries. What is not a
 * number is the least.
 *
 * The tokens that come and stay, ascending, take the slots of those that go, ascending, then the
 * empty ones; positions, mass and error of a slot become theirs. */
struct kva_keep_args {
    const struct kva_keep_seq *seqs; /* host [seq_count] */
    void *scratch;                   /* device: the sum of kva_keep_scratch_bytes, aligned to 8 */
    size_t scratch_bytes;
    uint32_t seq_count;
    uint32_t kv_heads;
    enum kva_keep_score score;
    float lambda; /* 0 to 1 */
};

/* --- rows into slots --------------------------------------------------------------------------- */

/* Rotary embedding by halves, as `rope` has it, undone or done. The attention factor is in the keys
 * and stays there. */
struct kva_keep_rotary {
    const float *inv_freq; /* host [rotary_dim / 2]; NULL: keys are not rotated */
    uint32_t rotary_dim;   /* even, <= head_dim */
};

struct kva_store_seq {
    const void *const *from; /* host [blocks], in either tier: 16-bit blocks, token i is token
                                i % KVA_PAGE_TOKENS of from[i / KVA_PAGE_TOKENS] */
    void *const *to;         /* host [slot_count / KVA_PAGE_TOKENS]: the store, in either tier */
    const uint32_t *slots;   /* [kv_heads][count]: as keep's `to`; device */
    const float *mean;       /* [kv_heads][head_dim]: taken off keys in few bits, once they are
                                rotated back; device. NULL: nothing is */
    uint32_t slot_count;     /* of the store: slots are less */
    uint32_t count;
    uint32_t position_first; /* of token 0; matters for rotation only */
};

/* The rows of tokens with a slot are written there, 16 bits or `format`; no other bytes change,
 * keys rotated back by their position before that, where inv_freq is given. */
struct kva_store_rows_args {
    const struct kva_store_seq *seqs; /* host [seq_count] */
    size_t from_offset_bytes;         /* added to every address of `from` */
    size_t to_offset_bytes;           /* added to every address of `to` */
    uint32_t seq_count;
    uint32_t kv_heads;
    uint32_t head_dim;
    enum kva_dtype kv_dtype;
    struct kva_lowbit_format format; /* KVA_KEYS_PER_TOKEN; bits 0: 16-bit blocks */
    struct kva_keep_rotary rotary;
};

/* --- use --------------------------------------------------------------------------------------- */

/* A count that has come to so much makes its KV head's counts half of what they are. */
#define KVA_USES_MAX 255.0f

enum kva_use_rule {
    KVA_USE_COUNT, /* mass += 1. If any mass of the KV head has then reached KVA_USES_MAX, all of
                      them are halved, rounded down (InfiniGen 4.4) */
    KVA_USE_STAMP, /* mass = first + step * i, i the index among `used`: in one rounding */
};

struct kva_use_seq {
    const uint32_t *used; /* [kv_heads][count]: different slots < filled, or KVA_NO_SLOT; device */
    float *mass;          /* [kv_heads][slots]; device */
    uint32_t count;
    uint32_t slots;
    uint32_t filled; /* <= slots: there is something in slots [0, filled) */
    enum kva_use_rule rule;
    float first, step; /* KVA_USE_STAMP */
};

struct kva_use_rows_args {
    const struct kva_use_seq *seqs; /* host [seq_count]; of different stores */
    uint32_t seq_count;
    uint32_t kv_heads;
};

/* --- rolling ------------------------------------------------------------------------------------ */

/* What a slot of `to` has. */
struct kva_roll_place {
    uint32_t token;    /* 1 + the position of the token whose row is there; 0: none */
    uint32_t position; /* its key is rotated by */
};

struct kva_roll_seq {
    const uint32_t *positions; /* [kv_heads][slots]: the store's; device */
    uint32_t *index;           /* out: [kv_heads][slots]: of slots [0, filled) the index among them
                                  by ascending position; device */
    struct kva_roll_place *places; /* in and out: [kv_heads][slots]; device */
    const void *const *from;       /* host: blocks of the store, keys not rotated */
    void *const *to;               /* host: 16-bit blocks, as many; they are not those of `from` */
    const float *mean;             /* what was taken off keys in few bits: comes back; or NULL */
    uint32_t slots;                /* stride of positions and index */
    uint32_t filled;
    uint32_t position_first; /* what index 0 is rotated by */
};

/* Slots [0, filled) of `from` as 16-bit rows in the same slots of `to`, keys rotated by
 * position_first + index. Of tokens that are there already, values are left as they are, and keys
 * that are rotated so: those of tokens behind all that went, since they move up as position_first
 * does. */
struct kva_roll_rows_args {
    const struct kva_roll_seq *seqs; /* host [seq_count] */
    size_t from_offset_bytes;
    size_t to_offset_bytes;
    uint32_t seq_count;
    uint32_t kv_heads;
    uint32_t head_dim;
    enum kva_dtype kv_dtype;         /* of `to`, and of `from` in 16 bits */
    struct kva_lowbit_format format; /* of `from`: as store_rows' */
    struct kva_keep_rotary rotary;   /* inv_freq is not NULL */
};

#endif
