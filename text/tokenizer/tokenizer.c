/* tokenizer.c - a tokenizer from its trees, and what it tells of its tokens. */
#include "text/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- what tokenizer_config.json adds ----------------------------------------------------------
 */

/* "bos_token": "<s>" or {"content": "<s>", ...}. A name that is not in the vocabulary is an error
 * where it would be missed, and no token where it would not (pad_token is often invented). */
static enum kva_status config_token(const struct kva_tokenizer *tokenizer,
                                    const struct kva_tok_place *place, const cJSON *config,
                                    const char *name, bool required, int32_t *ret_id)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, name);
    struct kva_tok_place inner = kva_tok_place_member(place, name);
    const char *text = NULL;
    enum kva_status status = KVA_OK;
    if (cJSON_IsObject(item))
        status = kva_tok_json_string(&inner, item, "content", &text);
    else
        status = kva_tok_json_string_optional(place, config, name, &text);
    if (status || !text)
        return status;
    int32_t id = kva_vocab_find(&tokenizer->vocab, text, strlen(text));
    if (id < 0 && required)
        return kva_tok_complain(&inner, KVA_EFORMAT, "'%.60s' is not in the vocabulary", text);
    if (id >= 0)
        *ret_id = id;
    return KVA_OK;
}

/* A configuration that says whether a token is added on its side of a text overrides what the
 * post-processor does with that token there: true, it alone is added, false, it is not. Another one
 * stays: Qwen3-Embedding's texts end with a token that is not its EOS. `missing`: what a flag that
 * is not there says; NULL: nothing. */
static enum kva_status config_side(const struct kva_tok_place *place, const cJSON *config,
                                   const char *flag, const bool *missing, int32_t token,
                                   int32_t *side, uint32_t *count)
{
    bool added;
    uint32_t kept = 0;
    enum kva_status status =
        kva_tok_json_bool(place, config, flag, missing ? *missing : false, &added);
    if (status || (!missing && kva_tok_json_missing(config, flag)) || token < 0)
        return status;
    for (uint32_t i = 0; i < *count && !added; i++)
        if (side[i] != token)
            side[kept++] = side[i];
    if (added)
        side[kept++] = token;
    *count = kept;
    return KVA_OK;
}

/* Whether transformers makes the post-processor anew, of both flags: a missing one is its default. */
static bool is_rebuilt(const cJSON *config)
{
    static const char *const classes[] = {"Llama", "CodeLlama", "Gemma"};
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(config, "tokenizer_class");
    for (size_t i = 0; cJSON_IsString(name) && i < KVA_COUNT_OF(classes); i++)
        if (strncmp(name->valuestring, classes[i], strlen(classes[i])) == 0)
            return true;
    return false;
}

static enum kva_status config_post(struct kva_tokenizer *tokenizer,
                                   const struct kva_tok_place *place, const cJSON *config)
{
    struct kva_post *post = &tokenizer->post;
    const bool any = !kva_tok_json_missing(config, "add_bos_token") ||
                     !kva_tok_json_missing(config, "add_eos_token");
    const bool yes = true, no = false, rebuilt = any && is_rebuilt(config);
    enum kva_status status = config_side(place, config, "add_bos_token", rebuilt ? &yes : NULL,
                                         tokenizer->bos, post->before, &post->before_count);
    return status ? status
                  : config_side(place, config, "add_eos_token", rebuilt ? &no : NULL,
                                tokenizer->eos, post->after, &post->after_count);
}

static enum kva_status load_config(struct kva_tokenizer *tokenizer,
                                   const struct kva_tok_place *place, const cJSON *config)
{
    enum kva_status status =
        config_token(tokenizer, place, config, "bos_token", true, &tokenizer->bos);
    if (!status)
        status = config_token(tokenizer, place, config, "eos_token", true, &tokenizer->eos);
    if (!status)
        status = config_token(tokenizer, place, config, "pad_token", false, &tokenizer->pad);
    if (!status)
        status = config_token(tokenizer, place, config, "unk_token", false, &tokenizer->unk);
    return status ? status : config_post(tokenizer, place, config);
}

/* ---- tokenizer.json ------------------------------------------------------------------------- */

static const cJSON *component(const cJSON *root, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, name);
    return item && !cJSON_IsNull(item) ? item : NULL;
}

static enum kva_status load_vocabulary(struct kva_tokenizer *tokenizer,
                                       const struct kva_tok_place *root_place, const cJSON *root)
{
    const cJSON *model = component(root, "model");
    const cJSON *added = component(root, "added_tokens");
    struct kva_tok_place model_place = kva_tok_place_member(root_place, "model");
    struct kva_tok_place added_place = kva_tok_place_member(root_place, "added_tokens");
    if (added && !cJSON_IsArray(added))
        return kva_tok_complain(&added_place, KVA_EFORMAT, "not an array");
    const cJSON *vocab = model ? cJSON_GetObjectItemCaseSensitive(model, "vocab") : NULL;
    size_t count = (vocab ? (size_t)cJSON_GetArraySize(vocab) : 0) +
                   (added ? (size_t)cJSON_GetArraySize(added) : 0);
    if (count > KVA_TOKENIZER_VOCAB_MAX)
        return kva_tok_complain(&model_place, KVA_ETOOBIG, "%zu tokens, limit is %d", count,
                                KVA_TOKENIZER_VOCAB_MAX);
    if (kva_vocab_init(&tokenizer->vocab, count))
        return kva_tok_complain(&model_place, KVA_ENOMEM, "no memory for %zu tokens", count);
    enum kva_status status = kva_bpe_load(tokenizer, &model_place, model);
    return status ? status : kva_added_load(tokenizer, &added_place, added);
}

/* The normalizer comes before the added tokens, which are normalized; the pre-tokenizer before the
 * model, which asks whether pieces are bytes. */
static enum kva_status load_components(struct kva_tokenizer *tokenizer,
                                       const struct kva_tok_place *place, const cJSON *root)
{
    const cJSON *item = component(root, "normalizer");
    struct kva_tok_place inner = kva_tok_place_member(place, "normalizer");
    enum kva_status status = KVA_OK;
    if (item)
        status = kva_normalizer_load(&tokenizer->normalizer, &inner, item);
    item = component(root, "pre_tokenizer");
    inner = kva_tok_place_member(place, "pre_tokenizer");
    if (!status && item)
        status = kva_pretokenizer_load(&tokenizer->pretokenizer, &tokenizer->bpe.bytes_mode, &inner,
                                       item);
    if (!status)
        status = load_vocabulary(tokenizer, place, root);
    item = component(root, "post_processor");
    inner = kva_tok_place_member(place, "post_processor");
    if (!status && item)
        status = kva_post_load(tokenizer, &inner, item);
    inner = kva_tok_place_member(place, "decoder");
    if (!status)
        status = kva_decoder_load(tokenizer, &inner, component(root, "decoder"));
    return status;
}

enum kva_status kva_tokenizer_build(const struct kva_tok_place *place, const cJSON *root,
                                    struct kva_tokenizer **ret_tokenizer)
{
    struct kva_tokenizer *tokenizer = calloc(1, sizeof(*tokenizer));
    if (!tokenizer)
        return kva_tok_complain(place, KVA_ENOMEM, "no memory");
    tokenizer->bos = tokenizer->eos = tokenizer->pad = -1;
    enum kva_status status = load_components(tokenizer, place, root);
    if (status) {
        kva_tokenizer_destroy(tokenizer);
        return status;
    }
    tokenizer->unk = tokenizer->bpe.unk;
    *ret_tokenizer = tokenizer;
    return KVA_OK;
}

enum kva_status kva_tokenizer_build_with(const struct kva_tok_place *place, cJSON *root,
                                         const struct kva_tok_place *config_place,
                                         const cJSON *config, struct kva_tokenizer **ret_tokenizer)
{
    struct kva_tokenizer *tokenizer = NULL;
    enum kva_status status = config ? kva_added_override(config_place, config, root) : KVA_OK;
    if (!status)
        status = kva_tokenizer_build(place, root, &tokenizer);
    if (!status && config)
        status = load_config(tokenizer, config_place, config);
    if (status) {
        kva_tokenizer_destroy(tokenizer);
        return status;
    }
    *ret_tokenizer = tokenizer;
    return KVA_OK;
}

void kva_tokenizer_destroy(struct kva_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    kva_vocab_finish(&tokenizer->vocab);
    kva_tok_ops_finish(&tokenizer->normalizer);
    kva_tok_ops_finish(&tokenizer->pretokenizer);
    kva_added_finish(&tokenizer->added);
    kva_bpe_finish(&tokenizer->bpe);
    kva_decoder_finish(&tokenizer->decoder);
    free(tokenizer);
}

/* ---- the vocabulary ------------------------------------------------------------------------- */

uint32_t kva_tokenizer_vocab_size(const struct kva_tokenizer *tokenizer)
{
    return tokenizer->vocab.size;
}

int32_t kva_tokenizer_lookup(const struct kva_tokenizer *tokenizer, const char *token,
                             size_t length)
{
    return kva_vocab_find(&tokenizer->vocab, token, length);
}

static const struct kva_vocab_entry *find_entry(const struct kva_tokenizer *tokenizer, int32_t id)
{
    if (id < 0 || (uint32_t)id >= tokenizer->vocab.size || !tokenizer->vocab.entries[id].flags)
        return NULL;
    return &tokenizer->vocab.entries[id];
}

const char *kva_tokenizer_token_string(const struct kva_tokenizer *tokenizer, int32_t id,
                                       size_t *ret_length)
{
    const struct kva_vocab_entry *entry = find_entry(tokenizer, id);
    if (!entry)
        return NULL;
    if (ret_length)
        *ret_length = entry->length;
    return tokenizer->vocab.pool.data + entry->offset;
}

const char *kva_tokenizer_token_bytes(const struct kva_tokenizer *tokenizer, int32_t id,
                                      size_t *ret_length)
{
    const struct kva_vocab_entry *entry = find_entry(tokenizer, id);
    if (!entry)
        return NULL;
    if (ret_length)
        *ret_length = entry->bytes_length;
    return tokenizer->vocab.bytes_pool.data + entry->bytes_offset;
}

bool kva_tokenizer_is_special(const struct kva_tokenizer *tokenizer, int32_t id)
{
    const struct kva_vocab_entry *entry = find_entry(tokenizer, id);
    return entry && (entry->flags & KVA_TOK_SPECIAL);
}

int32_t kva_tokenizer_bos(const struct kva_tokenizer *tokenizer)
{
    return tokenizer->bos;
}

int32_t kva_tokenizer_eos(const struct kva_tokenizer *tokenizer)
{
    return tokenizer->eos;
}

int32_t kva_tokenizer_pad(const struct kva_tokenizer *tokenizer)
{
    return tokenizer->pad;
}

int32_t kva_tokenizer_unk(const struct kva_tokenizer *tokenizer)
{
    return tokenizer->unk;
}
