/* gguf.c - the tokenizer of a GGUF file: its vocabulary, and what the names of its model and
 * pre-tokenizer stand for, put into the form of a tokenizer.json.
 *
 * `gpt2` is byte-level BPE with merges; `llama` is SentencePiece's BPE (pieces.h). */
#include "text/tokenizer/pieces.h"

#include "base/utf8.h"
#include "gguf/gguf.h"
#include "gguf/marks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY(name) "tokenizer.ggml." name

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
    struct kva_pieces pieces;
    bool sentence_piece;
    const struct pre *pre; /* NULL: SentencePiece */
    cJSON *root;
    int64_t bos, eos, pad;
};

/* ---- pre-tokenizers -------------------------------------------------------------------------- */

#define BYTES(use_regex) KVA_TREE_BYTES("false", use_regex)
#define SPLIT(regex)     KVA_TREE_SPLIT(regex)
#define SEQUENCE(list)   KVA_TREE_SEQUENCE(list)
#define WORDS(digits)    KVA_TREE_WORDS(digits)
#define DIGITS           "{\"type\":\"Digits\",\"individual_digits\":true}"

#define GPT2_SPLIT                                                                                 \
    SPLIT("'s|'t|'re|'ve|'m|'ll|'d| ?\\\\p{L}+| ?\\\\p{N}+| ?[^\\\\s\\\\p{L}\\\\p{N}]+|"           \
          "\\\\s+(?!\\\\S)|\\\\s+")

/* Mistral Nemo: words begin where small letters turn to capital ones. */
#define TEKKEN_UPPER "[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define TEKKEN_LOWER "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define TEKKEN_FIRST "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?"
#define TEKKEN_REST                                                                                \
    "\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define TEKKEN_WORD                                                                                \
    TEKKEN_FIRST TEKKEN_UPPER "*" TEKKEN_LOWER "+|" TEKKEN_FIRST TEKKEN_UPPER "+" TEKKEN_LOWER "*"
#define TEKKEN SEQUENCE(SPLIT(TEKKEN_WORD "|" TEKKEN_REST) "," BYTES("false"))

/* Of DeepSeek, from before the third. Letters are those of alphabets with two cases, as one version
 * of Unicode had them. */
#define DEEPSEEK_LETTERS                                                                           \
    "A-Za-z\\u00B5\\u00C0-\\u00D6\\u00D8-\\u00F6\\u00F8-\\u01BA\\u01BC-\\u01BF"                    \
    "\\u01C4-\\u0293\\u0295-\\u02AF\\u0370-\\u0373\\u0376\\u0377\\u037B-\\u037D\\u037F"            \
    "\\u0386\\u0388-\\u038A\\u038C\\u038E-\\u03A1\\u03A3-\\u03F5\\u03F7-\\u0481"                   \
    "\\u048A-\\u052F\\u0531-\\u0556\\u10A0-\\u10C5\\u13A0-\\u13F5\\u13F8-\\u13FD"                  \
    "\\u1C90-\\u1CBA\\u1CBD-\\u1CBF\\u1D00-\\u1D2B\\u1D6B-\\u1D77\\u1D79-\\u1D9A"                  \
    "\\u1E00-\\u1F15\\u1F18-\\u1F1D\\u1F20-\\u1F45\\u1F48-\\u1F4D\\u1F50-\\u1F57\\u1F59"           \
    "\\u1F5B\\u1F5D\\u1F5F-\\u1F7D\\u1F80-\\u1FB4\\u1FB6-\\u1FBC\\u1FBE\\u1FC2-\\u1FC4"            \
    "\\u1FC6-\\u1FCC\\u1FD0-\\u1FD3\\u1FD6-\\u1FDB\\u1FE0-\\u1FEC\\u1FF2-\\u1FF4"                  \
    "\\u1FF6-\\u1FFC\\u2102\\u2107\\u210A-\\u2113\\u2115\\u2119-\\u211D\\u2124\\u2126"             \
    "\\u2128\\u212A-\\u212D\\u212F-\\u2134\\u2139\\u213C-\\u213F\\u2145-\\u2149\\u214E"            \
    "\\u2183\\u2184\\u2C00-\\u2C7B\\u2C7E-\\u2CE4\\u2CEB-\\u2CEE\\u2CF2\\u2CF3"                    \
    "\\uA640-\\uA66D\\uA680-\\uA69B\\uA722-\\uA76F\\uA771-\\uA787\\uA78B-\\uA78E"                  \
    "\\uAB70-\\uABBF\\uFB00-\\uFB06\\uFB13-\\uFB17\\uFF21-\\uFF3A\\uFF41-\\uFF5A"                  \
    "\\uD801\\uDC00-\\uD801\\uDC4F\\uD801\\uDCB0-\\uD801\\uDCD3"                                   \
    "\\uD801\\uDCD8-\\uD801\\uDCFB\\uD803\\uDC80-\\uD803\\uDCB2"                                   \
    "\\uD803\\uDCC0-\\uD803\\uDCF2\\uD806\\uDCA0-\\uD806\\uDCDF"                                   \
    "\\uD83A\\uDD00-\\uD83A\\uDD43"
#define DEEPSEEK_MARKS "!-/:-~\\uFF01-\\uFF0F\\uFF1A-\\uFF5E\\u2018-\\u201F\\u3000-\\u3002"
#define DEEPSEEK_LLM                                                                               \
    SPLIT("\\\\s?[" DEEPSEEK_LETTERS "]+")                                                         \
    "," SPLIT("\\\\s?[" DEEPSEEK_MARKS "]+") "," SPLIT("\\\\s+$")
#define DEEPSEEK_CODER SPLIT("\\\\s?\\\\p{L}+") "," SPLIT("\\\\s?\\\\p{P}+")
#define DEEPSEEK_HAN   SPLIT("[\\u4E00-\\u9FA5\\u0800-\\u4E00\\uAC00-\\uD7FF]+")
#define DEEPSEEK(words)                                                                            \
    SEQUENCE(SPLIT("[\\r\\n]") "," words "," DEEPSEEK_HAN "," DIGITS "," BYTES("false"))

static const struct pre pre_table[] = {
    {"gpt-2", NULL, BYTES("true"), false, false},
    {"llama-bpe", NULL, WORDS("\\\\p{N}{1,3}"), true, true},
    {"llama3", NULL, WORDS("\\\\p{N}{1,3}"), true, true},
    {"llama-v3", NULL, WORDS("\\\\p{N}{1,3}"), true, true},
    /* Llama 3, as it was published at first. */
    {"smaug-bpe", NULL, WORDS("\\\\p{N}{1,3}"), false, false},
    {"tekken", NULL, TEKKEN, true, true},
    {"deepseek-llm", NULL, DEEPSEEK(DEEPSEEK_LLM), false, false},
    {"deepseek-coder", NULL, DEEPSEEK(DEEPSEEK_CODER), false, false},
    {"qwen2", KVA_TREE_NFC, WORDS("\\\\p{N}"), false, false},
    {"deepseek-r1-qwen", KVA_TREE_NFC, WORDS("\\\\p{N}"), false, false},
    {"smollm", NULL, SEQUENCE(DIGITS "," BYTES("true")), false, false},
    {"starcoder", NULL, SEQUENCE(DIGITS "," BYTES("true")), false, false},
    {"refact", NULL, SEQUENCE(DIGITS "," BYTES("true")), false, false},
    /* GPT-NeoX, Pythia. */
    {"mpt", KVA_TREE_NFC, BYTES("true"), false, false},
    {"olmo", KVA_TREE_NFC, BYTES("true"), false, false},
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
        "eos_token_ids",
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
    if (id >= (int64_t)r->pieces.count)
        return kva_tok_complain(&r->place, KVA_EFORMAT, "%s is %lld, there are %u tokens", key,
                                (long long)id, r->pieces.count);
    *ret = id;
    return KVA_OK;
}

static enum kva_status read_ids(struct reader *r)
{
    r->bos = r->eos = r->pad = -1;
    if (r->sentence_piece && r->pieces.count > 2) {
        /* What such files mean that do not say it. */
        r->pieces.unk = 0;
        r->bos = 1;
        r->eos = 2;
    }
    enum kva_status status = read_id(r, KEY("bos_token_id"), &r->bos);
    if (!status)
        status = read_id(r, KEY("eos_token_id"), &r->eos);
    if (!status)
        status = read_id(r, KEY("padding_token_id"), &r->pad);
    return status ? status : read_id(r, KEY("unknown_token_id"), &r->pieces.unk);
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

static enum kva_status read_token(struct reader *r, uint32_t id, struct kva_gguf_strings *strings,
                                  const struct kva_gguf_field *types,
                                  const struct kva_gguf_field *scores)
{
    const char *text;
    size_t length;
    int64_t type = KVA_PIECE_NORMAL;
    double score = 0;
    if (!kva_gguf_strings_next(strings, &text, &length))
        return kva_tok_complain(&r->place, KVA_EFORMAT, "%s is not an array of strings",
                                strings->field->key);
    if (types && (!kva_gguf_whole(r->gguf, types, id, &type) || type < 0 || type > KVA_PIECE_BYTE))
        return kva_tok_complain(&r->place, KVA_EFORMAT,
                                "%s has an entry, that of token %u, which is no type in 1..%d",
                                types->key, id, KVA_PIECE_BYTE);
    if (scores && (!kva_gguf_number(r->gguf, scores, id, &score) || isnan(score)))
        return kva_tok_complain(&r->place, KVA_EFORMAT,
                                "%s has an entry, that of token %u, which is no number",
                                scores->key, id);
    if (type == 0 || type == KVA_PIECE_NORMAL)
        type = kva_gguf_mark_is(text, length) ? KVA_PIECE_CONTROL : KVA_PIECE_NORMAL;
    r->pieces.items[id].type = (uint8_t)type;
    r->pieces.items[id].score = (float)score;
    enum kva_status status = kva_pieces_set_text(&r->pieces, id, text, length);
    /* Converters before the middle of 2024 left runs of spaces (Gemma) as the vocabulary spells them. */
    if (!status && r->sentence_piece && type == KVA_PIECE_USER_DEFINED)
        kva_pieces_unmark(&r->pieces, id);
    return status;
}

static enum kva_status read_tokens(struct reader *r)
{
    const struct kva_gguf_field *tokens, *types, *scores;
    enum kva_status status = field_of(r, KEY("tokens"), true, 0, &tokens);
    if (status)
        return status;
    status = kva_pieces_init(&r->pieces, &r->place, tokens->count, tokens->end - tokens->begin);
    if (status)
        return status;
    status = field_of(r, KEY("token_type"), false, tokens->count, &types);
    if (!status)
        status = field_of(r, KEY("scores"), r->sentence_piece, tokens->count, &scores);
    if (status)
        return status;
    struct kva_gguf_strings strings = kva_gguf_strings(r->gguf, tokens);
    for (uint32_t id = 0; id < r->pieces.count && !status; id++)
        status = read_token(r, id, &strings, types, scores);
    return status;
}

/* ---- as JSON --------------------------------------------------------------------------------- */

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
        return kva_tok_complain(&r->place, KVA_ENOMEM, "no memory for the merges");
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
            status = kva_tok_tree_append(&r->place, array, copy);
    }
    free(copy);
    return status;
}

/* ---- the model ------------------------------------------------------------------------------- */

/* Where a file does not say whether a text begins with a space. */
static enum kva_status default_prefix(const struct reader *r, bool *ret)
{
    const char *name = "";
    size_t length = 0;
    enum kva_status status =
        kva_gguf_get_string(r->gguf, "general.architecture", &name, &length, r->place.err);
    *ret = length != 5 || memcmp(name, "gemma", 5) != 0;
    return status;
}

static enum kva_status add_components(const struct reader *r)
{
    struct kva_space_rules rules = {0};
    enum kva_status status;
    if (!r->sentence_piece) {
        status = kva_tok_tree_add_text(&r->place, r->root, "normalizer", r->pre->normalizer);
        if (!status)
            status =
                kva_tok_tree_add_text(&r->place, r->root, "pre_tokenizer", r->pre->pretokenizer);
        return status ? status
                      : kva_tok_tree_add_text(&r->place, r->root, "decoder", BYTES("true"));
    }
    status = default_prefix(r, &rules.prefix);
    if (!status)
        status = kva_gguf_get_bool(r->gguf, KEY("add_space_prefix"), &rules.prefix, r->place.err);
    return status ? status : kva_tok_tree_add_spaces(&r->place, r->root, &rules);
}

static enum kva_status add_model(struct reader *r)
{
    cJSON *model = cJSON_CreateObject();
    cJSON *merges = cJSON_CreateArray();
    enum kva_status status = kva_tok_tree_add(&r->place, r->root, "model", model);
    if (status) {
        cJSON_Delete(merges);
        return status;
    }
    status = kva_tok_tree_add(&r->place, model, "merges", merges);
    if (!status)
        status = kva_tok_tree_add(&r->place, model, "type", cJSON_CreateString("BPE"));
    if (!status)
        status = kva_tok_tree_add(&r->place, model, "byte_fallback",
                                  cJSON_CreateBool(r->sentence_piece));
    if (!status)
        status =
            kva_tok_tree_add(&r->place, model, "fuse_unk", cJSON_CreateBool(r->sentence_piece));
    if (!status)
        status = kva_tok_tree_add(&r->place, model, "ignore_merges",
                                  cJSON_CreateBool(r->pre && r->pre->ignore_merges));
    if (!status && r->sentence_piece && r->pieces.unk >= 0 &&
        r->pieces.items[r->pieces.unk].length > 0)
        status = kva_tok_tree_add(&r->place, model, "unk_token",
                                  cJSON_CreateString(r->pieces.items[r->pieces.unk].text));
    if (!status)
        status = r->sentence_piece ? kva_pieces_put_merges(&r->pieces, merges)
                                   : listed_merges(r, merges);
    if (!status && !r->sentence_piece)
        status = kva_pieces_mark_merged(&r->pieces, merges);
    return status ? status : kva_pieces_put(&r->pieces, r->root, model);
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
    if (r->pieces.unk >= 0)
        tokenizer->unk = known_id(tokenizer, r->pieces.unk);
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
    enum kva_status status =
        r.root ? build(&r) : kva_tok_complain(&r.place, KVA_ENOMEM, "no memory");
    if (!status)
        status = kva_tokenizer_build(&r.place, r.root, &tokenizer);
    cJSON_Delete(r.root);
    if (!status)
        status = set_post(&r, tokenizer);
    kva_pieces_finish(&r.pieces);
    if (status) {
        kva_tokenizer_destroy(tokenizer);
        return status;
    }
    *ret_tokenizer = tokenizer;
    return KVA_OK;
}
