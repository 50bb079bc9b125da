/* listing.c - the files of a repository, and the choice among them. */
#include "hub/listing.h"

#include "base/buf.h"
#include "hub/name.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#define FILES_MAX 20000u

static const char *const single_file = "model.safetensors";
static const char *const index_file = "model.safetensors.index.json";

/* Beside the weights, where they are there. */
static const char *const others[] = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "special_tokens_map.json",
    "modules.json",
};

/* Of a repository that has no tokenizer.json. */
static const char *const old_tokenizer[] = {
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
};

/* --- the list -------------------------------------------------------------------------------- */

bool kva_hub_listing_add(struct kva_hub_listing *listing, const char *file)
{
    if (listing->count == FILES_MAX)
        return false;
    if (listing->count == listing->capacity) {
        size_t capacity = listing->capacity ? 2 * listing->capacity : 32;
        char **grown = realloc(listing->files, capacity * sizeof(*grown));
        if (!grown)
            return false;
        listing->files = grown;
        listing->capacity = capacity;
    }
    char *copy = strdup(file);
    if (copy)
        listing->files[listing->count++] = copy;
    return copy != NULL;
}

bool kva_hub_listing_has(const struct kva_hub_listing *listing, const char *file)
{
    for (size_t i = 0; i < listing->count; i++) {
        if (strcmp(listing->files[i], file) == 0)
            return true;
    }
    return false;
}

void kva_hub_listing_finish(struct kva_hub_listing *listing)
{
    for (size_t i = 0; i < listing->count; i++)
        free(listing->files[i]);
    free(listing->files);
    *listing = (struct kva_hub_listing){0};
}

/* JSON of a hub: the whole of it, or NULL. */
static cJSON *parse_object(const char *json, size_t length)
{
    cJSON *document = cJSON_ParseWithLengthOpts(json, length, NULL, false);
    if (cJSON_IsObject(document))
        return document;
    cJSON_Delete(document);
    return NULL;
}

static const char *get_text(const cJSON *object, const char *name)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsString(value) ? value->valuestring : "";
}

static enum kva_status read_files(const cJSON *siblings, struct kva_hub_listing *listing,
                                  struct kva_err *err)
{
    const cJSON *sibling;
    cJSON_ArrayForEach(sibling, siblings)
    {
        const char *name = get_text(sibling, "rfilename");
        if (*name && !kva_hub_listing_add(listing, name))
            return kva_fail(err, KVA_EFORMAT, "the hub lists over %u files, or memory is short",
                            FILES_MAX);
    }
    return KVA_OK;
}

enum kva_status kva_hub_listing_parse(const char *json, size_t length, struct kva_hub_listing *ret,
                                      struct kva_err *err)
{
    struct kva_hub_listing listing = {0};
    cJSON *document = parse_object(json, length);
    const cJSON *siblings = cJSON_GetObjectItemCaseSensitive(document, "siblings");
    const char *commit = get_text(document, "sha");
    enum kva_status status = KVA_OK;
    if (!document || !cJSON_IsArray(siblings) || !kva_hub_name_is_commit(commit))
        status = kva_fail(err, KVA_EFORMAT,
                          "the answer is not that of a hub: it lacks a commit or a list of files");
    else
        status = read_files(siblings, &listing, err);
    if (!status) {
        memcpy(listing.commit, commit, sizeof(listing.commit));
        *ret = listing;
    } else {
        kva_hub_listing_finish(&listing);
    }
    cJSON_Delete(document);
    return status;
}

/* --- choosing -------------------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), bytes = strlen(end);
    return length >= bytes && strcasecmp(text + length - bytes, end) == 0;
}

static enum kva_status add(struct kva_hub_choice *choice, const char *file, struct kva_err *err)
{
    if (!kva_hub_name_is_safe(file)) {
        char shown[101]; /* it goes to a terminal */
        kva_hub_name_show(shown, sizeof(shown), file, strlen(file));
        return kva_fail(err, KVA_EFORMAT, "the hub names a file '%s', which is no safe path",
                        shown);
    }
    if (!kva_hub_listing_has(&choice->files, file) && !kva_hub_listing_add(&choice->files, file))
        return kva_fail(err, KVA_ENOMEM, "out of memory for a list of files");
    return KVA_OK;
}

/* What modules.json of a model for embeddings names: "1_Pooling/config.json". */
static bool is_pooling(const char *file)
{
    const char *slash = strchr(file, '/');
    return slash && strcmp(slash, "/config.json") == 0 && slash - file > 8 &&
           strncmp(slash - 8, "_Pooling", 8) == 0;
}

/* What a model has beside its default: "additional_chat_templates/tool_use.jinja". */
static bool is_template(const char *file)
{
    static const char folder[] = "additional_chat_templates/";
    size_t length = strlen(folder);
    return strncmp(file, folder, length) == 0 && !strchr(file + length, '/') &&
           ends_with(file, ".jinja");
}

static enum kva_status choose_checkpoint(const struct kva_hub_listing *listing,
                                         const char *repository, struct kva_hub_choice *choice,
                                         struct kva_err *err)
{
    if (!kva_hub_listing_has(listing, "tokenizer.json") &&
        !kva_hub_listing_has(listing, "tokenizer.model") &&
        !(kva_hub_listing_has(listing, "vocab.json") && kva_hub_listing_has(listing, "merges.txt")))
        return kva_fail(err, KVA_EUNSUPPORTED,
                        "%s has no tokenizer that is read here: neither tokenizer.json, nor "
                        "tokenizer.model, nor vocab.json with merges.txt",
                        repository);
    /* The loader prefers the single file, too. */
    choice->index = !kva_hub_listing_has(listing, single_file);
    choice->settled = kva_hub_listing_has(listing, "tokenizer_config.json") &&
                      kva_hub_listing_has(listing, "generation_config.json");
    enum kva_status status = KVA_OK;
    if (choice->index)
        status = add(choice, index_file, err);
    for (size_t i = 0; i < KVA_COUNT_OF(others) && !status; i++) {
        if (kva_hub_listing_has(listing, others[i]))
            status = add(choice, others[i], err);
    }
    for (size_t i = 0; i < listing->count && !status; i++) {
        if (is_pooling(listing->files[i]) || is_template(listing->files[i]))
            status = add(choice, listing->files[i], err);
    }
    bool old = !kva_hub_listing_has(listing, "tokenizer.json");
    for (size_t i = 0; i < KVA_COUNT_OF(old_tokenizer) && old && !status; i++) {
        if (kva_hub_listing_has(listing, old_tokenizer[i]))
            status = add(choice, old_tokenizer[i], err);
    }
    if (!status && !choice->index)
        status = add(choice, single_file, err);
    return status;
}

/* Of "name-00002-of-00005.gguf": the part's number, the parts' count, and how much of the path
 * stands before. False: not split. */
static bool parse_split(const char *file, unsigned *ret_part, unsigned *ret_count, size_t *ret_stem)
{
    size_t length = strlen(file);
    unsigned part = 0, count = 0;
    const char *at = length > 20 ? file + length - 20 : "";
    if (*at != '-' || strncmp(at + 6, "-of-", 4) != 0 || strspn(at + 1, "0123456789") != 5 ||
        strspn(at + 10, "0123456789") != 5)
        return false;
    for (int i = 0; i < 5; i++) {
        part = 10 * part + (unsigned)(at[1 + i] - '0');
        count = 10 * count + (unsigned)(at[10 + i] - '0');
    }
    *ret_part = part;
    *ret_count = count;
    *ret_stem = length - 20;
    return true;
}

/* Whether `file` has `quantisation` among its path's words, before which a name may have an underscore;
 * "Q4_K" is no word of "x-Q4_K_M.gguf". */
static bool has_word(const char *file, const char *quantisation)
{
    size_t bytes = strlen(quantisation);
    for (const char *at = file; (at = strcasestr(at, quantisation)) != NULL; at++) {
        bool begins = at == file || strchr("-_./", at[-1]) != NULL;
        if (begins && (at[bytes] == '\0' || strchr("-./", at[bytes])))
            return true;
    }
    return false;
}

/* A model's, and the first part of it. What projects pictures is no model. */
static bool is_model(const char *file)
{
    unsigned part, count;
    size_t stem;
    const char *slash = strrchr(file, '/');
    return ends_with(file, ".gguf") && strncasecmp(slash ? slash + 1 : file, "mmproj", 6) != 0 &&
           (!parse_split(file, &part, &count, &stem) || part == 1);
}

static enum kva_status several(const struct kva_hub_listing *listing, const char *wanted,
                               const char *repository, struct kva_err *err)
{
    struct kva_buf names;
    kva_buf_init(&names, 1 << 16);
    for (size_t i = 0; i < listing->count && names.length < 250; i++) {
        if (is_model(listing->files[i]) && kva_hub_name_is_safe(listing->files[i]) &&
            (!*wanted || has_word(listing->files[i], wanted)))
            kva_buf_printf(&names, "%s%.100s", names.length ? ", " : "", listing->files[i]);
    }
    enum kva_status status = kva_fail(
        err, KVA_EINVAL, "%s has several GGUF files%s%s: name one, as in %s:FILE: %.250s",
        repository, *wanted ? " of " : "", wanted, repository, names.data ? names.data : "");
    kva_buf_finish(&names);
    return status;
}

static enum kva_status add_parts(const struct kva_hub_listing *listing, const char *first,
                                 const char *repository, struct kva_hub_choice *choice,
                                 struct kva_err *err)
{
    unsigned part, count, found = 1;
    size_t stem;
    enum kva_status status = add(choice, first, err);
    if (status || !parse_split(first, &part, &count, &stem))
        return status;
    if (part != 1)
        return kva_fail(err, KVA_EINVAL, "%s:%s is part %u of %u: name the first", repository,
                        first, part, count);
    for (size_t i = 0; i < listing->count && !status; i++) {
        const char *file = listing->files[i];
        unsigned own_part, own_count;
        size_t own_stem;
        if (!parse_split(file, &own_part, &own_count, &own_stem) || own_count != count ||
            own_stem != stem || strncmp(file, first, stem) != 0 || own_part == 1 ||
            own_part > count)
            continue;
        status = add(choice, file, err);
        found++;
    }
    if (!status && found != count)
        status = kva_fail(err, KVA_ENOTFOUND, "%s has %u of the %u parts of %s", repository, found,
                          count, first);
    return status;
}

static enum kva_status choose_gguf(const struct kva_hub_listing *listing, const char *wanted,
                                   const char *repository, struct kva_hub_choice *choice,
                                   struct kva_err *err)
{
    const char *exact = NULL, *match = NULL;
    size_t matches = 0;
    for (size_t i = 0; i < listing->count; i++) {
        const char *file = listing->files[i];
        if (strcmp(file, wanted) == 0)
            exact = file;
        if (is_model(file) && (!*wanted || has_word(file, wanted))) {
            match = file;
            matches++;
        }
    }
    if (exact && !ends_with(exact, ".gguf"))
        return kva_fail(err, KVA_EUNSUPPORTED,
                        "%s:%s is no GGUF file; without a file's name, a checkpoint in "
                        "safetensors is taken as a whole",
                        repository, wanted);
    if (!exact && matches == 0)
        return kva_fail(err, KVA_ENOTFOUND, "%s has no GGUF file '%s'", repository, wanted);
    if (!exact && matches > 1)
        return several(listing, wanted, repository, err);
    choice->gguf = choice->settled = true;
    return add_parts(listing, exact ? exact : match, repository, choice, err);
}

enum kva_status kva_hub_listing_choose(const struct kva_hub_listing *listing, const char *wanted,
                                       const char *repository, struct kva_hub_choice *ret,
                                       struct kva_err *err)
{
    struct kva_hub_choice choice = {0};
    bool gguf = false, checkpoint = kva_hub_listing_has(listing, "config.json") &&
                                    (kva_hub_listing_has(listing, single_file) ||
                                     kva_hub_listing_has(listing, index_file));
    for (size_t i = 0; i < listing->count; i++)
        gguf |= is_model(listing->files[i]);
    enum kva_status status;
    if (*wanted || (gguf && !checkpoint))
        status = choose_gguf(listing, wanted, repository, &choice, err);
    else if (checkpoint)
        status = choose_checkpoint(listing, repository, &choice, err);
    else
        status = kva_fail(err, KVA_EUNSUPPORTED,
                          "%s has neither a GGUF file nor config.json with model.safetensors, the "
                          "forms of models that are served here",
                          repository);
    if (status) {
        kva_hub_choice_finish(&choice);
        return status;
    }
    memcpy(choice.files.commit, listing->commit, sizeof(choice.files.commit));
    *ret = choice;
    return KVA_OK;
}

void kva_hub_choice_finish(struct kva_hub_choice *choice)
{
    kva_hub_listing_finish(&choice->files);
}

enum kva_status kva_hub_choice_add_index(struct kva_hub_choice *choice, const char *json,
                                         size_t length, struct kva_err *err)
{
    cJSON *document = parse_object(json, length);
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(document, "weight_map");
    const cJSON *file;
    const char *former = "";
    enum kva_status status = KVA_OK;
    if (!cJSON_IsObject(map) || !map->child)
        status = kva_fail(err, KVA_EFORMAT, "%s has no weight_map", index_file);
    for (file = map ? map->child : NULL; file && !status; file = file->next) {
        if (!cJSON_IsString(file) || !ends_with(file->valuestring, ".safetensors"))
            status = kva_fail(err, KVA_EFORMAT, "%s names a file that is none of safetensors",
                              index_file);
        else if (strcmp(file->valuestring, former) != 0)
            status = add(choice, file->valuestring, err);
        former = status ? "" : file->valuestring;
    }
    cJSON_Delete(document);
    return status;
}
