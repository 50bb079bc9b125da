/* policy_choice.h - which KV policy a sequence runs under and with which settings, as a request or
 * the operator names them.
 *
 * Reads constants only: any thread. */
#ifndef KVA_ENGINE_KV_POLICY_CHOICE_H
#define KVA_ENGINE_KV_POLICY_CHOICE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

enum kva_kv_policy_id {
    KVA_KV_FULL,     /* 16-bit pages on the device */
    KVA_KV_OFFLOAD,  /* 16-bit pages on the host, all staged every step (FlexGen-like baseline) */
    KVA_KV_KIVI,     /* 1, 2 or 4 bits on the device, the newest tokens in 16 (KIVI) */
    KVA_KV_SPECACHE, /* the same, and the 16-bit rows that the next step will need, fetched ahead */
    KVA_KV_POLICY_COUNT,
};

/* Whose query tells which rows the next step will need. */
enum kva_kv_predictor {
    KVA_PREDICT_SPEC_TOKEN, /* a speculative token, decoded along (SpeCache 3.3) */
    KVA_PREDICT_PREV_QUERY, /* this step's own token: no second row; where the next query has
                               moved away from it, the choice is made again, with a wait (FreeKV) */
    KVA_PREDICT_SYNC,       /* the next token itself, which then waits for the rows: the oracle */
    KVA_PREDICT_AUTO,       /* sync on a CPU, where rows are fetched by the attention that chose
                               them; on a GPU spec-token where a second row is measured to be
                               nearly free on this machine with this model, else prev-query */
    KVA_PREDICTOR_COUNT,
};

/* What the speculative token behind a wrong one is made from. */
enum kva_kv_miss {
    KVA_MISS_CHAIN,     /* from the wrong one: the paper; one miss breeds others */
    KVA_MISS_PREDECODE, /* from the token that came instead, which runs once more before its step,
                           as in the pre-decoding (SpeCache 3.3), and chooses that step's rows */
    KVA_MISS_COUNT,
};

enum kva_kv_fetch {
    KVA_FETCH_ALL,      /* every chosen row, every step: the paper */
    KVA_FETCH_DELTA,    /* only rows that are not there already; the same tokens as ALL */
    KVA_FETCH_RESIDENT, /* the same traffic; rows of earlier choices attend while they are there */
    KVA_FETCH_COUNT,
};

enum kva_kv_levels {
    KVA_KV_LEVELS_PAPER, /* from minimum and maximum of a group */
    KVA_KV_LEVELS_FIT,   /* least squares: the same bytes, less error */
    KVA_KV_LEVELS_AUTO, /* paper at 1 bit, fit at more: what was measured to be closer to full KV */
    KVA_KV_LEVELS_COUNT,
};

/* Layers [first, end) with a k of their own. */
struct kva_kv_k_range {
    uint32_t first, end;
    uint32_t k;
};

#define KVA_KV_K_RANGES_MAX 4u

/* Settings that a policy does not have are ignored by it. */
struct kva_kv_choice {
    enum kva_kv_policy_id policy;

    /* --- kivi, specache --- */
    uint32_t bits;  /* 1, 2 or 4 */
    uint32_t group; /* 32 or 64 */
    enum kva_kv_levels levels;
    uint32_t window; /* newest tokens in 16 bits, at least */
    uint32_t sinks;  /* first tokens in 16 bits, at most KVA_KV_SINKS_MAX */
    uint32_t plain;  /* sequences under this many tokens stay in 16 bits */
    uint32_t exempt; /* so many first layers stay in 16 bits */

    /* --- specache --- */
    uint32_t k; /* rows fetched per KV head: "topk"; of layers without a range below */
    enum kva_kv_predictor predictor;
    uint32_t correct; /* prev-query: percent of cosine between successive queries of a layer, mean
                         over its heads, under which it chooses again; 0: never */
    enum kva_kv_fetch fetch;
    enum kva_kv_miss miss;                               /* spec-token */
    struct kva_kv_k_range k_ranges[KVA_KV_K_RANGES_MAX]; /* the last that has a layer holds */
    uint32_t k_range_count;
};

/* Rows fetched per KV head in a layer. */
uint32_t kva_kv_choice_k(const struct kva_kv_choice *choice, uint32_t layer);

/* The largest of them. */
uint32_t kva_kv_choice_k_max(const struct kva_kv_choice *choice);

/* k of all layers as options, requests and specs write it: N, then +N@LAYER or +N@FIRST-LAST for
 * layers that have another one: "64", "64+256@0-1". No number exceeds `max`. Fails: KVA_EINVAL
 * (err->param is "topk"), the choice is as it was. */
KVA_MUST_CHECK enum kva_status kva_kv_choice_read_k(const char *text, size_t length, uint32_t max,
                                                    struct kva_kv_choice *choice,
                                                    struct kva_err *err);

#define KVA_KV_K_TEXT_MAX 128u

/* The same backwards; `text` holds KVA_KV_K_TEXT_MAX bytes. */
void kva_kv_choice_write_k(const struct kva_kv_choice *choice, char *text);

/* Whose query predicts, where AUTO does not need to be measured: sync where the host reads the
 * device's memory (kva_device_info.host_readable), since there is nothing to wait for and a token's
 * own query chooses best. Elsewhere AUTO stays what it is. */
enum kva_kv_predictor kva_kv_predictor_of(const struct kva_kv_choice *choice, bool host_readable);

/* A setting by name, as requests (kv.NAME) and options (--kv-NAME) have it. */
struct kva_kv_setting {
    const char *name;
    uint32_t min, max;        /* of a number */
    const char *const *words; /* or one of these, NULL-terminated; the value is the index */
    size_t offset;            /* of the 32-bit value in struct kva_kv_choice */
    bool by_layer;            /* k: kva_kv_choice_read_k, and write_k */
};

/* The word that a setting of words has for a value. */
const char *kva_kv_setting_word(const char *name, uint32_t value);

/* The table; *ret_count entries. */
const struct kva_kv_setting *kva_kv_settings(size_t *ret_count);

static inline uint32_t *kva_kv_setting_value(const struct kva_kv_setting *setting,
                                             struct kva_kv_choice *choice)
{
    return (uint32_t *)(void *)((unsigned char *)choice + setting->offset);
}

#define KVA_KV_SINKS_MAX 32u
#define KVA_KV_K_MAX     65536u
#define KVA_KV_LAYER_MAX 65535u

/* The settings of each policy that were measured to be best (docs/kv.md). */
struct kva_kv_choice kva_kv_choice_default(enum kva_kv_policy_id policy);

/* The papers' settings: SpeCache 1 and 4.1 (window 64, k 64, no sinks, every row fetched every
 * step); KIVI (window 128). */
struct kva_kv_choice kva_kv_choice_paper(enum kva_kv_policy_id policy);

/* Fails: KVA_EINVAL, err->param is the setting ("bits", "topk", ...). */
KVA_MUST_CHECK enum kva_status kva_kv_choice_check(const struct kva_kv_choice *choice,
                                                   struct kva_err *err);

/* A choice from one line: NAME[:BITS[:TOPK]][:SETTING=VALUE...], with the settings of the table and
 * paper=true, which starts from the paper's settings instead of the defaults: "full", "kivi:1",
 * "specache:2:128:levels=paper". clients/quality reads the same. Fails: KVA_EINVAL, err->param is
 * the setting, or "policy". */
KVA_MUST_CHECK enum kva_status kva_kv_choice_parse(const char *spec, struct kva_kv_choice *ret,
                                                   struct kva_err *err);

/* "full", "offload", "kivi", "specache". */
const char *kva_kv_policy_name(enum kva_kv_policy_id policy);

/* Policy of that name; KVA_KV_POLICY_COUNT if there is none. */
enum kva_kv_policy_id kva_kv_policy_find(const char *name);

/* Whether a sequence's tokens depend on the policy: pages that were computed after its prompt are
 * then not what `full` would have computed. */
bool kva_kv_policy_exact(enum kva_kv_policy_id policy);

#endif
