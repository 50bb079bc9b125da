/* bpe_load.c - vocabulary, merges and options of a BPE model. */
#include "text/tokenizer/internal.h"

#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bits of the table of neighbours: a false "may join" only costs time. */
#define JOIN_BITS (1u << 21)
/* A prefix or suffix of every symbol makes symbols of unknown ones, so it is short. */
#define AFFIX_BYTES_MAX 32

static uint64_t pair_key(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static uint64_t pair_hash(uint64_t key)
{
    key ^= key >> 29;
    key *= 0xBF58476D1CE4E5B9ull;
    return key ^ key >> 32;
}

const struct kva_merge_slot *kva_bpe_find(const struct kva_bpe *bpe, int32_t left, int32_t right)
{
    uint64_t key = pair_key(left, right);
    for (uint64_t at = pair_hash(key) & bpe->slot_mask;; at = (at + 1) & bpe->slot_mask) {
        const struct kva_merge_slot *slot = &bpe->slots[at];
        if (slot->key == key)
            return slot;
        if (slot->key == UINT64_MAX)
            return NULL;
    }
}

static uint64_t join_bit(int32_t left, int32_t right)
{
    return pair_hash(pair_key(left, right)) & (JOIN_BITS - 1);
}

bool kva_bpe_may_join(const struct kva_bpe *bpe, int32_t left, int32_t right)
{
    uint64_t bit = join_bit(left, right);
    return bpe->joins[bit / 64] >> (bit % 64) & 1;
}

void kva_bpe_set_join(struct kva_bpe *bpe, int32_t left, int32_t right)
{
    uint64_t bit = join_bit(left, right);
    bpe->joins[bit / 64] |= 1ull << (bit % 64);
}

/* ---- vocabulary ----------------------------------------------------------------------------- */

static enum kva_status load_vocab(struct kva_tokenizer *tokenizer,
                                  const struct kva_tok_place *place, const cJSON *vocab)
{
    size_t count = 0;
    for (const cJSON *item = vocab->child; item; item = item->next) {
        struct kva_tok_place here = *place;
        uint32_t id;
        if (!item->string)
            return kva_tok_complain(place, KVA_EFORMAT, "entry %zu has no name", count);
        if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0) ||
            !(item->valuedouble < KVA_TOKENIZER_VOCAB_MAX) ||
            item->valuedouble != (double)(uint32_t)item->valuedouble)
            here = kva_tok_place_member(place, item->string);
        enum kva_status status = kva_tok_json_uint(&here, item, KVA_TOKENIZER_VOCAB_MAX - 1, &id);
        if (!status)
            status = kva_vocab_add(&tokenizer->vocab, place, item->string, id, KVA_TOK_MODEL);
        if (status)
            return status;
        count++;
    }
    return KVA_OK;
}

static int32_t find_fallback(const struct kva_vocab *vocab, unsigned byte)
{
    char name[8];
    int length = snprintf(name, sizeof(name), "<0x%02X>", byte);
    return kva_vocab_find_model(vocab, name, (size_t)length);
}

static void load_alphabet(struct kva_tokenizer *tokenizer)
{
    struct kva_bpe *bpe = &tokenizer->bpe;
    for (unsigned byte = 0; byte < 256; byte++) {
        char letter[4];
        uint32_t code = bpe->bytes_mode ? kva_bytelevel_code((uint8_t)byte) : byte;
        int size = kva_utf8_encode(code, letter);
        bpe->byte_ids[byte] = kva_vocab_find_model(&tokenizer->vocab, letter, (size_t)size);
        bpe->fallback_ids[byte] = find_fallback(&tokenizer->vocab, byte);
    }
}

/* ---- merges --------------------------------------------------------------------------------- */

static enum kva_status add_merge(struct kva_bpe *bpe, int32_t left, int32_t right, int32_t id,
                                 uint32_t rank)
{
    uint64_t key = pair_key(left, right);
    uint64_t at = pair_hash(key) & bpe->slot_mask;
    while (bpe->slots[at].key != UINT64_MAX && bpe->slots[at].key != key)
        at = (at + 1) & bpe->slot_mask;
    /* Of two merges of one pair the later one counts, as in the reference. */
    bpe->slots[at] = (struct kva_merge_slot){.key = key, .rank = rank, .id = id};
    bpe->rank_ids[rank] = id;
    return KVA_OK;
}

/* The parts of one merge: "left right" or ["left","right"]. */
static bool merge_parts(const cJSON *item, const char **left, size_t *left_length,
                        const char **right)
{
    if (cJSON_IsString(item)) {
        const char *space = strchr(item->valuestring, ' ');
        if (!space || strchr(space + 1, ' '))
            return false;
        *left = item->valuestring;
        *left_length = (size_t)(space - item->valuestring);
        *right = space + 1;
        return true;
    }
    const cJSON *first = cJSON_IsArray(item) ? item->child : NULL;
    const cJSON *second = first ? first->next : NULL;
    if (!second || second->next || !cJSON_IsString(first) || !cJSON_IsString(second))
        return false;
    *left = first->valuestring;
    *left_length = strlen(first->valuestring);
    *right = second->valuestring;
    return true;
}

/* Records that the last character of `left` and the first of `right` may meet in one token. */
static void note_join(struct kva_tokenizer *tokenizer, const char *left, size_t left_length,
                      const char *right, size_t right_length)
{
    size_t last = left_length - 1;
    while (last > 0 && ((unsigned char)left[last] & 0xC0) == 0x80)
        last--;
    int size = kva_utf8_sequence(right, right_length, NULL);
    int32_t a = kva_vocab_find_model(&tokenizer->vocab, left + last, left_length - last);
    int32_t b = kva_vocab_find_model(&tokenizer->vocab, right, (size_t)size);
    if (a >= 0 && b >= 0)
        kva_bpe_set_join(&tokenizer->bpe, a, b);
}

static bool is_fallback(const struct kva_bpe *bpe, int32_t id)
{
    if (id == bpe->unk)
        return true;
    for (unsigned byte = 0; bpe->byte_fallback && byte < 256; byte++) {
        if (bpe->fallback_ids[byte] == id)
            return true;
    }
    return false;
}

static enum kva_status load_merge(struct kva_tokenizer *tokenizer,
                                  const struct kva_tok_place *place, const cJSON *item,
                                  uint32_t rank, struct kva_buf *joined)
{
    struct kva_bpe *bpe = &tokenizer->bpe;
    const struct kva_vocab *vocab = &tokenizer->vocab;
    const char *left, *right;
    size_t left_length;
    if (!merge_parts(item, &left, &left_length, &right))
        return kva_tok_complain(place, KVA_EFORMAT, "merge %u is not a pair of tokens", rank);
    size_t right_length = strlen(right);
    size_t skip = bpe->prefix ? strlen(bpe->prefix) : 0;
    if (left_length == 0 || right_length <= skip)
        return kva_tok_complain(place, KVA_EFORMAT, "merge %u has an empty part", rank);
    kva_buf_clear(joined);
    kva_buf_append(joined, left, left_length);
    kva_buf_append(joined, right + skip, right_length - skip);
    if (joined->failed)
        return kva_tok_complain(place, KVA_ETOOBIG, "merge %u is too long", rank);
    int32_t a = kva_vocab_find_model(vocab, left, left_length);
    int32_t b = kva_vocab_find_model(vocab, right, right_length);
    int32_t id = kva_vocab_find_model(vocab, joined->data, joined->length);
    if (a < 0 || b < 0 || id < 0)
        return kva_tok_complain(place, KVA_EFORMAT,
                                "merge %u: token '%.60s' is not in the vocabulary", rank,
                                a < 0   ? left
                                : b < 0 ? right
                                        : joined->data);
    if (bpe->joins && (is_fallback(bpe, a) || is_fallback(bpe, b))) {
        /* Characters are then no longer what merges begin with. */
        free(bpe->joins);
        bpe->joins = NULL;
    }
    if (bpe->joins)
        note_join(tokenizer, left, left_length, right, right_length);
    return add_merge(bpe, a, b, id, rank);
}

static enum kva_status load_merges(struct kva_tokenizer *tokenizer,
                                   const struct kva_tok_place *place, const cJSON *merges)
{
    struct kva_bpe *bpe = &tokenizer->bpe;
    size_t count = (size_t)cJSON_GetArraySize(merges);
    size_t slots = 16;
    if (count > KVA_TOKENIZER_MERGES_MAX)
        return kva_tok_complain(place, KVA_ETOOBIG, "%zu merges, limit is %d", count,
                                KVA_TOKENIZER_MERGES_MAX);
    while (slots < count * 2)
        slots *= 2;
    bpe->slots = malloc(slots * sizeof(*bpe->slots));
    bpe->rank_ids = calloc(count + 1, sizeof(*bpe->rank_ids));
    if (!bpe->prefix && !bpe->suffix)
        bpe->joins = calloc(JOIN_BITS / 64, sizeof(*bpe->joins));
    if (!bpe->slots || !bpe->rank_ids || (!bpe->prefix && !bpe->suffix && !bpe->joins))
        return kva_tok_complain(place, KVA_ENOMEM, "no memory for %zu merges", count);
    memset(bpe->slots, 0xFF, slots * sizeof(*bpe->slots));
    bpe->slot_mask = slots - 1;
    struct kva_buf joined;
    kva_buf_init(&joined, 2 * KVA_TOKENIZER_TOKEN_BYTES_MAX);
    enum kva_status status = KVA_OK;
    for (const cJSON *item = merges->child; item && !status; item = item->next)
        status = load_merge(tokenizer, place, item, bpe->merge_count++, &joined);
    kva_buf_finish(&joined);
    return status;
}

/* ---- the model ------------------------------------------------------------------------------ */

static enum kva_status load_affix(const struct kva_tok_place *place, const cJSON *model,
                                  const char *name, char **ret_affix)
{
    const char *text;
    enum kva_status status = kva_tok_json_string_optional(place, model, name, &text);
    if (status || !text || !*text)
        return status;
    if (strlen(text) > AFFIX_BYTES_MAX)
        return kva_tok_complain(place, KVA_ETOOBIG, "'%s' has %zu bytes, limit is %d", name,
                                strlen(text), AFFIX_BYTES_MAX);
    *ret_affix = strdup(text);
    return *ret_affix ? KVA_OK : kva_tok_complain(place, KVA_ENOMEM, "no memory");
}

static enum kva_status load_options(struct kva_tokenizer *tokenizer,
                                    const struct kva_tok_place *place, const cJSON *model)
{
    struct kva_bpe *bpe = &tokenizer->bpe;
    const cJSON *dropout = cJSON_GetObjectItemCaseSensitive(model, "dropout");
    if (cJSON_IsNumber(dropout) && dropout->valuedouble > 0)
        return kva_tok_complain(place, KVA_EUNSUPPORTED, "dropout %g is not supported",
                                dropout->valuedouble);
    enum kva_status status =
        kva_tok_json_bool(place, model, "ignore_merges", false, &bpe->ignore_merges);
    if (!status)
        status = kva_tok_json_bool(place, model, "byte_fallback", false, &bpe->byte_fallback);
    if (!status)
        status = kva_tok_json_bool(place, model, "fuse_unk", false, &bpe->fuse_unk);
    if (!status)
        status = load_affix(place, model, "continuing_subword_prefix", &bpe->prefix);
    if (!status)
        status = load_affix(place, model, "end_of_word_suffix", &bpe->suffix);
    return status;
}

static enum kva_status load_unk(struct kva_tokenizer *tokenizer, const struct kva_tok_place *place,
                                const cJSON *model)
{
    const char *unk;
    enum kva_status status = kva_tok_json_string_optional(place, model, "unk_token", &unk);
    tokenizer->bpe.unk = -1;
    if (status || !unk)
        return status;
    tokenizer->bpe.unk = kva_vocab_find_model(&tokenizer->vocab, unk, strlen(unk));
    if (tokenizer->bpe.unk < 0)
        return kva_tok_complain(place, KVA_EFORMAT, "unk_token '%.60s' is not in the vocabulary",
                                unk);
    return KVA_OK;
}

enum kva_status kva_bpe_load(struct kva_tokenizer *tokenizer, const struct kva_tok_place *place,
                             const cJSON *model)
{
    const char *type;
    if (!cJSON_IsObject(model))
        return kva_tok_complain(place, KVA_EFORMAT, "not an object");
    enum kva_status status = kva_tok_json_string_optional(place, model, "type", &type);
    if (status)
        return status;
    /* Old files leave the type out; what has merges is BPE. */
    if (type ? strcmp(type, "BPE") != 0 : kva_tok_json_missing(model, "merges"))
        return kva_tok_complain(place, KVA_EUNSUPPORTED, "model of type '%.60s' is not supported",
                                type ? type : "none");
    const cJSON *vocab = cJSON_GetObjectItemCaseSensitive(model, "vocab");
    const cJSON *merges;
    struct kva_tok_place vocab_place = kva_tok_place_member(place, "vocab");
    struct kva_tok_place merges_place = kva_tok_place_member(place, "merges");
    if (!cJSON_IsObject(vocab))
        return kva_tok_complain(&vocab_place, KVA_EFORMAT, "not an object");
    status = kva_tok_json_array(place, model, "merges", &merges);
    if (!status)
        status = load_options(tokenizer, place, model);
    if (!status)
        status = load_vocab(tokenizer, &vocab_place, vocab);
    if (!status)
        status = load_unk(tokenizer, place, model);
    if (!status) {
        load_alphabet(tokenizer);
        status = load_merges(tokenizer, &merges_place, merges);
    }
    return status;
}

void kva_bpe_finish(struct kva_bpe *bpe)
{
    free(bpe->slots);
    free(bpe->rank_ids);
    free(bpe->prefix);
    free(bpe->suffix);
    free(bpe->joins);
}
