/* gguf.c - the tokenizer of a GGUF file: its vocabulary, and what the names of its model and
 * pre-tokenizer stand for, put into the form of a tokenizer.json.
 *
 * `gpt2` is byte-level BPE with merges; `llama` is SentencePiece's BPE, which has scores instead:
 * of two neighbours that make a token those are joined first whose token scores highest, so its
 * merges are all pairs that make a token, ordered by its score. */
#include "text/tokenizer/internal.h"

#include "base/utf8.h"
#include "gguf/gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY(name) "tokenizer.ggml." name

enum token_type {
    TYPE_NORMAL = 1,
    TYPE_UNKNOWN = 2,
    TYPE_CONTROL = 3,
    TYPE_USER_DEFINED = 4,
    TYPE_UNUSED = 5,
    TYPE_BYTE = 6,
};

struct token {
    char *text; /* NUL-terminated, in `texts` */
    uint32_t length;
    uint8_t type;
    float score;
};

/* What a pre-tokenizer's name means. */
struct pre {
    const char *name;
    const char *normalizer;
    const char *pretokenizer;
    bool ignore_merges;
    bool add_bos; /* where no field says it */
};

struct reader {
    const struct kva_gguf *gguf;
    struct kva_tok_place place;
    struct kva_arena texts;
    struct token *tokens;
    uint32_t count;
    bool sentence_piece;
    const struct pre *pre; /* NULL: SentencePiece */
    cJSON *root;
    int64_t bos, eos, pad, unk;
};

/* ---- pre-tokenizers -------------------------------------------------------------------------- */

#define NFC "{\"type\":\"NFC\"}"
#define BYTES(use_regex)                                                                           \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":" use_regex "}"
#define SPLIT(regex)                                                                               \
    "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"" regex "\"}}"
#define SEQUENCE(members) "{\"type\":\"Sequence\",\"pretokenizers\":[" members "]}"
#define DIGITS            "{\"type\":\"Digits\",\"individual_digits\":true}"

/* Of Llama 3 and what followed it, which differ in how many digits go together. */
#define WORDS(digits)                                                                              \
    SEQUENCE(SPLIT("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" digits  \
                   "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|"                \
                   "\\\\s+(?!\\\\S)|\\\\s+") "," BYTES("false"))

#define GPT2_SPLIT                                                                                 \
    SPLIT("'s|'t|'re|'ve|'m|'ll|'d| ?\\\\p{L}+| ?\\\\p{N}+| ?[^\\\\s\\\\p{L}\\\\p{N}]+|"           \
          "\\\\s+(?!\\\\S)|\\\\s+")

static const struct pre pre_table[] = {
    {"gpt-2", NULL, BYTES("true"), false, false},
    {"llama-bpe", NULL, WORDS("\\\\p{N}{1,3}"), true, true},
    {"llama3", NULL, WORDS("\\\\p{N}{1,3}"), true, true},
    {"llama-v3", NULL, WORDS("\\\\p{N}{1,3}"), true, true},
    {"qwen2", NFC, WORDS("\\\\p{N}"), false, false},
    {"deepseek-r1-qwen", NFC, WORDS("\\\\p{N}"), false, false},
    {"smollm", NULL, SEQUENCE(DIGITS "," BYTES("true")), false, false},
    {"starcoder", NULL, SEQUENCE(DIGITS "," BYTES("true")), false, false},
    {"refact", NULL, SEQUENCE(DIGITS "," BYTES("true")), false, false},
    /* GPT-NeoX, Pythia. */
    {"mpt", NFC, BYTES("true"), false, false},
    {"olmo", NFC, BYTES("true"), false, false},
    /* What files say whose converter knew no better. */
    {"default", NULL,
     SEQUENCE(SPLIT("[\\\\p{P}\\\\$\\\\+<=>\\\\^~\\\\|]+") "," GPT2_SPLIT "," SPLIT(
         "\\\\p{N}+") "," SPLIT("[0-9][0-9][0-9]") "," BYTES("false")),
     false, false},
};

static enum kva_status find_pre(struct reader *r)
{
    const char *name = "default";
    size_t length = strlen(name);
    struct kva_buf list;
    enum kva_status status = kva_gguf_get_string(r->gguf, KEY("pre"), &name, &length, r->place.err);
    if (status)
        return status;
    for (size_t i = 0; i < KVA_COUNT_OF(pre_table); i++) {
        if (strlen(pre_table[i].name) == length && memcmp(pre_table[i].name, name, length) == 0) {
            r->pre = &pre_table[i];
            return KVA_OK;
        }
    }
    kva_buf_init(&list, KVA_ERR_MESSAGE_MAX);
    for (size_t i = 0; i < KVA_COUNT_OF(pre_table); i++)
        kva_buf_printf(&list, "%s%s", i ? ", " : "", pre_table[i].name);
    status = kva_tok_complain(&r->place, KVA_EUNSUPPORTED,
                              KEY("pre") " '%.*s' is not supported; supported are: %s",
                              (int)kva_min_size(length, 60), name, list.data ? list.data : "");
    kva_buf_finish(&list);
    return status;
}

/* ---- fields ---------------------------------------------------------------------------------- */

/* A field that is not known may change the ids. */
static enum kva_status check_fields(const struct reader *r)
{
    static const char *const known[] = {
        "model",
        "pre",
        "tokens",
        "token_type",
        "token_type_count",
        "scores",
        "merges",
        "add_bos_token",
        "add_eos_token",
        "add_sep_token",
        "add_space_prefix",
        "remove_extra_whitespaces",
        "precompiled_charsmap",
    };
    const char id_end[] = "_token_id";
    for (size_t i = 0; i < r->gguf->field_count; i++) {
        const char *key = r->gguf->fields[i].key;
        size_t skip = strlen(KEY("")), length = strlen(key);
        bool found = length > strlen(id_end) && strcmp(key + length - strlen(id_end), id_end) == 0;
        if (strncmp(key, KEY(""), skip) != 0)
            continue;
        for (size_t j = 0; j < KVA_COUNT_OF(known) && !found; j++)
            found = strcmp(key + skip, known[j]) == 0;
        if (!found)
            return kva_tok_complain(&r->place, KVA_EUNSUPPORTED,
                                    "%s is not known, and may change the tokens", key);
    }
    return KVA_OK;
}

/* Switches that may only be off. */
static enum kva_status check_off(const struct reader *r)
{
    static const char *const keys[] = {KEY("add_sep_token"), KEY("remove_extra_whitespaces")};
    for (size_t i = 0; i < KVA_COUNT_OF(keys); i++) {
        bool on = false;
        enum kva_status status = kva_gguf_get_bool(r->gguf, keys[i], &on, r->place.err);
        if (status)
            return status;
        if (on)
            return kva_tok_complain(&r->place, KVA_EUNSUPPORTED, "%s true is not supported",
                                    keys[i]);
    }
    const struct kva_gguf_field *map = kva_gguf_find(r->gguf, KEY("precompiled_charsmap"));
    if (map && map->count > 0)
        return kva_tok_complain(&r->place, KVA_EUNSUPPORTED, "%s is not supported", map->key);
    return KVA_OK;
}

static enum kva_status read_id(const struct reader *r, const char *key, int64_t *ret)
{
    int64_t id = *ret;
    enum kva_status status = kva_gguf_get_whole(r->gguf, key, -1, UINT32_MAX, &id, r->place.err);
    if (status)
        return status;
    if (id == UINT32_MAX)
        id = -1;
    if (id >= (int64_t)r->count)
        return kva_tok_complain(&r->place, KVA_EFORMAT, "%s is %lld, there are %u tokens", key,
                                (long long)id, r->count);
    *ret = id;
    return KVA_OK;
}

static enum kva_status read_ids(struct reader *r)
{
    r->bos = r->eos = r->pad = r->unk = -1;
    if (r->sentence_piece && r->count > 2) {
        /* What such files mean that do not say it. */
        r->unk = 0;
        r->bos = 1;
        r->eos = 2;
    }
    enum kva_status status = read_id(r, KEY("bos_token_id"), &r->bos);
    if (!status)
        status = read_id(r, KEY("eos_token_id"), &r->eos);
    if (!status)
        status = read_id(r, KEY("padding_token_id"), &r->pad);
    return status ? status : read_id(r, KEY("unknown_token_id"), &r->unk);
}

/* ---- the vocabulary -------------------------------------------------------------------------- */

static enum kva_status field_of(const struct reader *r, const char *key, bool required,
                                uint64_t count, const struct kva_gguf_field **ret)
{
    const struct kva_gguf_field *field = kva_gguf_find(r->gguf, key);
    if (!field && required)
        return kva_tok_complain(&r->place, KVA_EFORMAT, "%s is missing", key);
    if (field && !field->is_array)
        return kva_tok_complain(&r->place, KVA_EFORMAT, "%s is not an array", key);
    if (field && count && field->count != count)
        return kva_tok_complain(&r->place, KVA_EFORMAT,
                                "%s has %llu entries, there are %llu tokens", key,
                                (unsigned long long)field->count, (unsigned long long)count);
    *ret = field;
    return KVA_OK;
}

static enum kva_status copy_text(struct reader *r, uint32_t id, const char *text, size_t length)
{
    if (length > KVA_TOKENIZER_TOKEN_BYTES_MAX)
        return kva_tok_complain(&r->place, KVA_ETOOBIG, "token %u has %zu bytes, limit is %d", id,
                                length, KVA_TOKENIZER_TOKEN_BYTES_MAX);
    char *copy = kva_arena_strndup(&r->texts, text, length);
    if (!copy)
        return kva_tok_complain(&r->place, KVA_ENOMEM, "no memory for %u tokens", r->count);
    if (memchr(copy, '\0', length))
        return kva_tok_complain(&r->place, KVA_EFORMAT, "token %u has a NUL in it", id);
    if (!kva_utf8_valid(copy, length))
        return kva_tok_complain(&r->place, KVA_EFORMAT, "token %u is not UTF-8", id);
    r->tokens[id].text = copy;
    r->tokens[id].length = (uint32_t)length;
    return KVA_OK;
}

static enum kva_status read_token(struct reader *r, uint32_t id, struct kva_gguf_strings *strings,
                                  const struct kva_gguf_field *types,
                                  const struct kva_gguf_field *scores)
{
    const char *text;
    size_t length;
    int64_t type = TYPE_NORMAL;
    double score = 0;
    if (!kva_gguf_strings_next(strings, &text, &length))
        return kva_tok_complain(&r->place, KVA_EFORMAT, "%s is not an array of strings",
                                strings->field->key);
    if (types && (!kva_gguf_whole(r->gguf, types, id, &type) || type < 0 || type > TYPE_BYTE))
        return kva_tok_complain(&r->place, KVA_EFORMAT,
                                "%s has an entry, that of token %u, which is no type in 1..%d",
                                types->key, id, TYPE_BYTE);
    if (scores && (!kva_gguf_number(r->gguf, scores, id, &score) || isnan(score)))
        return kva_tok_complain(&r->place, KVA_EFORMAT,
                                "%s has an entry, that of token %u, which is no number",
                                scores->key, id);
    r->tokens[id].type = (uint8_t)(type == 0 ? TYPE_NORMAL : type);
    r->tokens[id].score = (float)score;
    return copy_text(r, id, text, length);
}

static enum kva_status read_tokens(struct reader *r)
{
    const struct kva_gguf_field *tokens, *types, *scores;
    enum kva_status status = field_of(r, KEY("tokens"), true, 0, &tokens);
    if (status)
        return status;
    if (tokens->count == 0 || tokens->count > KVA_TOKENIZER_VOCAB_MAX)
        return kva_tok_complain(&r->place, KVA_ETOOBIG, "%llu tokens, allowed are 1..%d",
                                (unsigned long long)tokens->count, KVA_TOKENIZER_VOCAB_MAX);
    status = field_of(r, KEY("token_type"), false, tokens->count, &types);
    if (!status)
        status = field_of(r, KEY("scores"), r->sentence_piece, tokens->count, &scores);
    if (status)
        return status;
    r->tokens = calloc(tokens->count, sizeof(*r->tokens));
    if (!r->tokens)
        return kva_tok_complain(&r->place, KVA_ENOMEM, "no memory for %llu tokens",
                                (unsigned long long)tokens->count);
    r->count = (uint32_t)tokens->count;
    kva_arena_init(&r->texts, 2 * (tokens->end - tokens->begin) + r->count * 32ull + 65536);
    struct kva_gguf_strings strings = kva_gguf_strings(r->gguf, tokens);
    for (uint32_t id = 0; id < r->count && !status; id++)
        status = read_token(r, id, &strings, types, scores);
    return status;
}

/* ---- as JSON --------------------------------------------------------------------------------- */

static enum kva_status no_memory(const struct reader *r)
{
    return kva_tok_complain(&r->place, KVA_ENOMEM, "no memory for the vocabulary");
}

static enum kva_status add(const struct reader *r, cJSON *object, const char *name, cJSON *value)
{
    if (value && cJSON_AddItemToObject(object, name, value))
        return KVA_OK;
    cJSON_Delete(value);
    return no_memory(r);
}

static enum kva_status add_text(const struct reader *r, const char *name, const char *json)
{
    return json ? add(r, r->root, name, cJSON_Parse(json)) : KVA_OK;
}

/* Whether BPE may make it. */
static bool is_in_model(const struct reader *r, uint32_t id)
{
    const struct token *token = &r->tokens[id];
    return token->length > 0 && (token->type == TYPE_NORMAL || token->type == TYPE_BYTE ||
                                 token->type == TYPE_UNKNOWN || (int64_t)id == r->unk);
}

/* Control tokens are special, user-defined ones are not; both are found in the text as they are. */
static enum kva_status add_added(const struct reader *r, cJSON *array, uint32_t id)
{
    const struct token *token = &r->tokens[id];
    bool special = token->type != TYPE_USER_DEFINED;
    if (token->length == 0 || token->type == TYPE_NORMAL || token->type == TYPE_BYTE ||
        token->type == TYPE_UNUSED)
        return KVA_OK;
    cJSON *item = cJSON_CreateObject();
    if (item && cJSON_AddNumberToObject(item, "id", id) &&
        cJSON_AddStringToObject(item, "content", token->text) &&
        cJSON_AddBoolToObject(item, "special", special) &&
        cJSON_AddBoolToObject(item, "normalized", false) && cJSON_AddItemToArray(array, item))
        return KVA_OK;
    cJSON_Delete(item);
    return no_memory(r);
}

static enum kva_status add_vocab(const struct reader *r, cJSON *model)
{
    cJSON *vocab = cJSON_CreateObject();
    cJSON *added = cJSON_CreateArray();
    enum kva_status status = add(r, model, "vocab", vocab);
    if (status) {
        cJSON_Delete(added);
        return status;
    }
    status = add(r, r->root, "added_tokens", added);
    for (uint32_t id = 0; id < r->count && !status; id++) {
        if (is_in_model(r, id))
            status = add(r, vocab, r->tokens[id].text, cJSON_CreateNumber(id));
        if (!status)
            status = add_added(r, added, id);
    }
    return status;
}

static enum kva_status add_string(const struct reader *r, cJSON *array, const char *text)
{
    cJSON *item = cJSON_CreateString(text);
    if (item && cJSON_AddItemToArray(array, item))
        return KVA_OK;
    cJSON_Delete(item);
    return no_memory(r);
}

/* The merges that the file lists. */
static enum kva_status listed_merges(const struct reader *r, cJSON *array)
{
    const struct kva_gguf_field *field;
    const char *text;
    size_t length;
    enum kva_status status = field_of(r, KEY("merges"), true, 0, &field);
    if (status)
        return status;
    if (field->count > KVA_TOKENIZER_MERGES_MAX)
        return kva_tok_complain(&r->place, KVA_ETOOBIG, "%llu merges, limit is %d",
                                (unsigned long long)field->count, KVA_TOKENIZER_MERGES_MAX);
    char *copy = malloc(2 * (KVA_TOKENIZER_TOKEN_BYTES_MAX + 1));
    if (!copy)
        return no_memory(r);
    struct kva_gguf_strings strings = kva_gguf_strings(r->gguf, field);
    for (uint64_t i = 0; i < field->count && !status; i++) {
        if (!kva_gguf_strings_next(&strings, &text, &length) ||
            length > 2 * KVA_TOKENIZER_TOKEN_BYTES_MAX) {
            status =
                kva_tok_complain(&r->place, KVA_EFORMAT, "%s is not an array of pairs", field->key);
            break;
        }
        memcpy(copy, text, length);
        copy[length] = '\0';
        if (strlen(copy) != length || !kva_utf8_valid(copy, length))
            status = kva_tok_complain(&r->place, KVA_EFORMAT,
                                      "merge %llu has a NUL in it or is not UTF-8",
                                      (unsigned long long)i);
        else
            status = add_string(r, array, copy);
    }
    free(copy);
    return status;
}

/* ---- merges from scores ---------------------------------------------------------------------- */

struct merge {
    float score;
    int32_t id, left, right;
};

static int compare_merges(const void *a, const void *b)
{
    const struct merge *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    if (x->left != y->left)
        return x->left < y->left ? -1 : 1;
    return x->right < y->right ? -1 : x->right > y->right;
}

struct merges {
    struct merge *items;
    size_t count, capacity;
};

static bool push_merge(struct merges *merges, struct merge merge)
{
    if (merges->count == merges->capacity) {
        size_t capacity = merges->capacity ? 2 * merges->capacity : 4096;
        struct merge *items = realloc(merges->items, capacity * sizeof(*items));
        if (!items)
            return false;
        merges->items = items;
        merges->capacity = capacity;
    }
    merges->items[merges->count++] = merge;
    return true;
}

/* All ways to make token `id` of two tokens. Tokens longer than any that is trained are left out,
 * so that the work stays linear in the file. */
static enum kva_status split_token(const struct reader *r, const struct kva_vocab *vocab,
                                   uint32_t id, struct merges *merges)
{
    enum { SPLIT_BYTES_MAX = 512 };
    const struct token *token = &r->tokens[id];
    if (token->length > SPLIT_BYTES_MAX || token->type != TYPE_NORMAL)
        return KVA_OK;
    for (size_t at = 1; at < token->length; at++) {
        if (((unsigned char)token->text[at] & 0xC0) == 0x80)
            continue;
        int32_t left = kva_vocab_find(vocab, token->text, at);
        int32_t right = kva_vocab_find(vocab, token->text + at, token->length - at);
        if (left < 0 || right < 0)
            continue;
        if (merges->count == KVA_TOKENIZER_MERGES_MAX)
            return kva_tok_complain(&r->place, KVA_ETOOBIG, "more than %d pairs make a token",
                                    KVA_TOKENIZER_MERGES_MAX);
        if (!push_merge(merges, (struct merge){token->score, (int32_t)id, left, right}))
            return no_memory(r);
    }
    return KVA_OK;
}

static enum kva_status add_pair(const struct reader *r, cJSON *array, const struct merge *merge)
{
    cJSON *pair = cJSON_CreateArray();
    if (!pair || !cJSON_AddItemToArray(array, pair)) {
        cJSON_Delete(pair);
        return no_memory(r);
    }
    enum kva_status status = add_string(r, pair, r->tokens[merge->left].text);
    return status ? status : add_string(r, pair, r->tokens[merge->right].text);
}

static enum kva_status scored_merges(const struct reader *r, cJSON *array)
{
    struct kva_vocab vocab = {.entries = NULL};
    struct merges merges = {.items = NULL};
    enum kva_status status = kva_vocab_init(&vocab, r->count);
    if (status)
        status = no_memory(r);
    for (uint32_t id = 0; id < r->count && !status; id++)
        if (r->tokens[id].length > 0 && r->tokens[id].type == TYPE_NORMAL)
            status = kva_vocab_add(&vocab, &r->place, r->tokens[id].text, id, KVA_TOK_MODEL);
    for (uint32_t id = 0; id < r->count && !status; id++)
        status = split_token(r, &vocab, id, &merges);
    if (!status && merges.count > 0)
        qsort(merges.items, merges.count, sizeof(*merges.items), compare_merges);
    for (size_t i = 0; i < merges.count && !status; i++)
        status = add_pair(r, array, &merges.items[i]);
    kva_vocab_finish(&vocab);
    free(merges.items);
    return status;
}

/* ---- the model ------------------------------------------------------------------------------- */

/* "▁" */
#define SPACE "\xE2\x96\x81"
#define REPLACE(from, to)                                                                          \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" from "\"},\"content\":\"" to "\"}"

static enum kva_status add_components(const struct reader *r)
{
    bool prefix = true;
    enum kva_status status;
    if (!r->sentence_piece) {
        status = add_text(r, "normalizer", r->pre->normalizer);
        if (!status)
            status = add_text(r, "pre_tokenizer", r->pre->pretokenizer);
        return status ? status : add_text(r, "decoder", BYTES("true"));
    }
    status = kva_gguf_get_bool(r->gguf, KEY("add_space_prefix"), &prefix, r->place.err);
    if (!status)
        status = add_text(r, "normalizer",
                          prefix ? "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\","
                                   "\"prepend\":\"" SPACE "\"}," REPLACE(" ", SPACE) "]}"
                                 : REPLACE(" ", SPACE));
    if (!status)
        status = add_text(
            r, "decoder",
            prefix ? "{\"type\":\"Sequence\",\"decoders\":[" REPLACE(
                         SPACE, " ") ","
                                     "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":"
                                     "\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}"
                   : "{\"type\":\"Sequence\",\"decoders\":[" REPLACE(
                         SPACE, " ") ","
                                     "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}");
    return status;
}

static enum kva_status add_model(const struct reader *r)
{
    cJSON *model = cJSON_CreateObject();
    cJSON *merges = cJSON_CreateArray();
    enum kva_status status = add(r, r->root, "model", model);
    if (status) {
        cJSON_Delete(merges);
        return status;
    }
    status = add(r, model, "merges", merges);
    if (!status)
        status = add(r, model, "type", cJSON_CreateString("BPE"));
    if (!status)
        status = add(r, model, "byte_fallback", cJSON_CreateBool(r->sentence_piece));
    if (!status)
        status = add(r, model, "fuse_unk", cJSON_CreateBool(r->sentence_piece));
    if (!status)
        status = add(r, model, "ignore_merges", cJSON_CreateBool(r->pre && r->pre->ignore_merges));
    if (!status && r->sentence_piece && r->unk >= 0 && r->tokens[r->unk].length > 0)
        status = add(r, model, "unk_token", cJSON_CreateString(r->tokens[r->unk].text));
    if (!status)
        status = add_vocab(r, model);
    if (!status)
        status = r->sentence_piece ? scored_merges(r, merges) : listed_merges(r, merges);
    return status;
}

static enum kva_status find_model(struct reader *r)
{
    const char *name = NULL;
    size_t length = 0;
    enum kva_status status =
        kva_gguf_get_string(r->gguf, KEY("model"), &name, &length, r->place.err);
    if (status)
        return status;
    if (!name)
        return kva_tok_complain(&r->place, KVA_ENOTFOUND, "it has no tokenizer: %s is missing",
                                KEY("model"));
    r->sentence_piece = length == 5 && memcmp(name, "llama", 5) == 0;
    if (r->sentence_piece)
        return KVA_OK;
    if (length != 4 || memcmp(name, "gpt2", 4) != 0)
        return kva_tok_complain(&r->place, KVA_EUNSUPPORTED,
                                KEY("model") " '%.*s' is not supported; supported are: gpt2, llama",
                                (int)kva_min_size(length, 60), name);
    return find_pre(r);
}

static int32_t known_id(const struct kva_tokenizer *tokenizer, int64_t id)
{
    return id >= 0 && kva_tokenizer_token_string(tokenizer, (int32_t)id, NULL) ? (int32_t)id : -1;
}

static enum kva_status set_post(const struct reader *r, struct kva_tokenizer *tokenizer)
{
    bool bos = r->sentence_piece || r->pre->add_bos, eos = false;
    enum kva_status status = kva_gguf_get_bool(r->gguf, KEY("add_bos_token"), &bos, r->place.err);
    if (!status)
        status = kva_gguf_get_bool(r->gguf, KEY("add_eos_token"), &eos, r->place.err);
    if (status)
        return status;
    tokenizer->bos = known_id(tokenizer, r->bos);
    tokenizer->eos = known_id(tokenizer, r->eos);
    tokenizer->pad = known_id(tokenizer, r->pad);
    if (r->unk >= 0)
        tokenizer->unk = known_id(tokenizer, r->unk);
    if ((bos && tokenizer->bos < 0) || (eos && tokenizer->eos < 0))
        return kva_tok_complain(
            &r->place, KVA_EFORMAT,
            "each text is to begin or end with a token that " KEY("%s") " does not name",
            bos && tokenizer->bos < 0 ? "bos_token_id" : "eos_token_id");
    if (bos)
        tokenizer->post.before[tokenizer->post.before_count++] = tokenizer->bos;
    if (eos)
        tokenizer->post.after[tokenizer->post.after_count++] = tokenizer->eos;
    return KVA_OK;
}

static enum kva_status build(struct reader *r)
{
    enum kva_status status = find_model(r);
    if (!status)
        status = check_fields(r);
    if (!status)
        status = check_off(r);
    if (!status)
        status = read_tokens(r);
    if (!status)
        status = read_ids(r);
    if (!status)
        status = add_components(r);
    return status ? status : add_model(r);
}

enum kva_status kva_tokenizer_load_gguf(const struct kva_gguf *gguf,
                                        struct kva_tokenizer **ret_tokenizer, struct kva_err *err)
{
    struct kva_err ignored;
    struct kva_tokenizer *tokenizer = NULL;
    struct reader r = {.gguf = gguf, .root = cJSON_CreateObject()};
    r.place = kva_tok_place_root(gguf->file, err ? err : &ignored);
    enum kva_status status = r.root ? build(&r) : no_memory(&r);
    if (!status)
        status = kva_tokenizer_build(&r.place, r.root, &tokenizer);
    cJSON_Delete(r.root);
    if (!status)
        status = set_post(&r, tokenizer);
    kva_arena_finish(&r.texts);
    free(r.tokens);
    if (status) {
        kva_tokenizer_destroy(tokenizer);
        return status;
    }
    *ret_tokenizer = tokenizer;
    return KVA_OK;
}
