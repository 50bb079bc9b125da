/* vocab_merges.c - the tokenizer of vocab.json and merges.txt (GPT-2, OPT, Qwen2), put into the form
 * of a tokenizer.json. The two files say nothing of how a text is split before BPE: the class that
 * tokenizer_config.json names knows it, or else the kind of the model. */
#include "text/tokenizer/folder.h"
#include "text/tokenizer/pieces.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

struct kind {
    const char *name; /* "Fast" may follow a class */
    const char *normalizer;
    const char *pretokenizer, *pretokenizer_prefix; /* the latter puts a space before a text */
    bool bos;                                       /* END is its bos_token too */
};

/* What both classes take for eos_token and unk_token where nothing names others. */
#define END   "<|endoftext|>"

#define GPT2  NULL, KVA_TREE_BYTES("false", "true"), KVA_TREE_BYTES("true", "true"), true
#define QWEN2 KVA_TREE_NFC, KVA_TREE_WORDS("\\\\p{N}"), NULL, false

static const struct kind classes[] = {{"GPT2Tokenizer", GPT2}, {"Qwen2Tokenizer", QWEN2}};
static const struct kind model_types[] = {
    {"gpt2", GPT2}, {"opt", GPT2}, {"gpt_neox", GPT2}, {"qwen2", QWEN2}, {"qwen3", QWEN2}};

static const struct kind *find(const struct kind *table, size_t count, const char *name,
                               size_t length)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(table[i].name) == length && memcmp(table[i].name, name, length) == 0)
            return &table[i];
    return NULL;
}

static const struct kind *find_class(const char *name)
{
    const char fast[] = "Fast";
    size_t length = strlen(name), fast_length = strlen(fast);
    if (length > fast_length && strcmp(name + length - fast_length, fast) == 0)
        length -= fast_length;
    return find(classes, KVA_COUNT_OF(classes), name, length);
}

static enum kva_status find_kind(const struct kva_tok_place *place,
                                 const struct kva_tok_place *config_place, const cJSON *config,
                                 const char *model_type, const struct kind **ret)
{
    const char *name = NULL;
    enum kva_status status =
        kva_tok_json_string_optional(config_place, config, "tokenizer_class", &name);
    if (status)
        return status;
    if (name)
        *ret = find_class(name);
    else if (model_type)
        *ret = find(model_types, KVA_COUNT_OF(model_types), model_type, strlen(model_type));
    if (*ret)
        return KVA_OK;
    if (name)
        return kva_tok_complain(config_place, KVA_EUNSUPPORTED,
                                "tokenizer_class '%.60s' with vocab.json and merges.txt is not "
                                "supported; supported are: GPT2Tokenizer, Qwen2Tokenizer. Save the "
                                "tokenizer as tokenizer.json",
                                name);
    return kva_tok_complain(place, KVA_EUNSUPPORTED,
                            "how texts are split is not known: tokenizer_config.json names no "
                            "tokenizer_class, and model_type '%.60s' does not tell. Save the "
                            "tokenizer as tokenizer.json",
                            model_type ? model_type : "");
}

/* ---- merges.txt ------------------------------------------------------------------------------ */

static enum kva_status add_line(const struct kva_tok_place *place, cJSON *merges, char *line,
                                size_t length, size_t number)
{
    if (length > 0 && line[length - 1] == '\r')
        length--;
    if (length == 0 || (length >= 8 && memcmp(line, "#version", 8) == 0))
        return KVA_OK;
    char *space = memchr(line, ' ', length);
    if (!space || memchr(space + 1, ' ', length - (size_t)(space + 1 - line)))
        return kva_tok_complain(place, KVA_EFORMAT, "line %zu is not two tokens", number);
    char after = line[length];
    line[length] = '\0';
    enum kva_status status = kva_tok_tree_append(place, merges, line);
    line[length] = after;
    return status;
}

static enum kva_status add_merges(const struct kva_tok_place *place,
                                  const struct kva_tokenizer_file *file, cJSON *merges)
{
    size_t number = 0, count = 0;
    if (memchr(file->data, '\0', file->length) || !kva_utf8_valid(file->data, file->length))
        return kva_tok_complain(place, KVA_EFORMAT, "has a NUL in it or is not UTF-8");
    char *copy = malloc(file->length + 1);
    if (!copy)
        return kva_tok_complain(place, KVA_ENOMEM, "no memory for the merges");
    memcpy(copy, file->data, file->length);
    copy[file->length] = '\0';
    enum kva_status status = KVA_OK;
    for (char *line = copy, *end = copy + file->length; line < end && !status;) {
        char *stop = memchr(line, '\n', (size_t)(end - line));
        size_t length = stop ? (size_t)(stop - line) : (size_t)(end - line);
        if (++count > KVA_TOKENIZER_MERGES_MAX)
            status = kva_tok_complain(place, KVA_ETOOBIG, "more than %d lines",
                                      KVA_TOKENIZER_MERGES_MAX);
        else
            status = add_line(place, merges, line, length, ++number);
        line += length + 1;
    }
    free(copy);
    return status;
}

/* ---- as a tree ------------------------------------------------------------------------------- */

/* The class's own, where it is a token. */
static enum kva_status add_defaults(const struct kva_tok_place *place, const struct kind *kind,
                                    const cJSON *vocab, cJSON *config)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token"};
    enum kva_status status = KVA_OK;
    if (!cJSON_GetObjectItemCaseSensitive(vocab, END))
        return KVA_OK;
    for (size_t i = kind->bos ? 0 : 1; i < KVA_COUNT_OF(names) && !status; i++)
        if (!cJSON_HasObjectItem(config, names[i]))
            status = kva_tok_tree_add(place, config, names[i], cJSON_CreateString(END));
    return status;
}

static enum kva_status add_splitting(const struct kva_tok_place *place,
                                     const struct kva_tok_place *config_place,
                                     const struct kind *kind, const cJSON *config, cJSON *root)
{
    bool prefix = false;
    enum kva_status status =
        kva_tok_json_bool(config_place, config, "add_prefix_space", false, &prefix);
    if (!status && prefix && !kind->pretokenizer_prefix)
        return kva_tok_complain(config_place, KVA_EUNSUPPORTED,
                                "add_prefix_space true is not supported for %s", kind->name);
    if (!status)
        status = kva_tok_tree_add_text(place, root, "normalizer", kind->normalizer);
    if (!status)
        status = kva_tok_tree_add_text(place, root, "pre_tokenizer",
                                       prefix ? kind->pretokenizer_prefix : kind->pretokenizer);
    return status ? status
                  : kva_tok_tree_add_text(place, root, "decoder", KVA_TREE_BYTES("false", "true"));
}

enum kva_status kva_vocab_merges_tree(const struct kva_tok_place *place,
                                      const struct kva_tokenizer_files *files,
                                      const struct kva_tok_place *config_place, cJSON *config,
                                      const char *model_type, cJSON *root)
{
    const struct kva_tok_place merges_place = kva_tok_place_root("merges.txt", place->err);
    const struct kind *kind = NULL;
    cJSON *vocab = NULL;
    enum kva_status status = find_kind(place, config_place, config, model_type, &kind);
    if (!status)
        status = kva_tok_json_parse(place, files->vocab.data, files->vocab.length,
                                    KVA_TOKENIZER_FILE_BYTES_MAX, &vocab);
    if (status)
        return status;
    cJSON *model = cJSON_AddObjectToObject(root, "model");
    cJSON *merges = cJSON_AddArrayToObject(model, "merges");
    status = kva_tok_tree_add(place, model, "vocab", vocab);
    if (!status && (!merges || !cJSON_AddStringToObject(model, "type", "BPE")))
        status = kva_tok_complain(place, KVA_ENOMEM, "no memory for the vocabulary");
    if (!status)
        status = add_merges(&merges_place, &files->merges, merges);
    if (!status)
        status = add_defaults(place, kind, vocab, config);
    return status ? status : add_splitting(place, config_place, kind, config, root);
}
