/* listing.h - the files of a repository, and which of them a model is made of.
 *
 * A checkpoint: config.json, the weights in safetensors (one file, or an index and those that it
 * names), tokenizer.json, and what there is of settings, poolings and chat templates. Or one GGUF
 * file, with all of its parts where it is split, chosen by its path or by its quantisation.
 *
 * What a hub says is not trusted: names that would leave the folder are refused, numbers bounded.
 *
 * Thread rule: one thread at a time. */
#ifndef KVA_HUB_LISTING_H
#define KVA_HUB_LISTING_H

#include "base/err.h"

#include <stdbool.h>

/* Bytes of an answer or an index. */
#define KVA_HUB_JSON_BYTES_MAX ((size_t)16 << 20)

struct kva_hub_listing {
    char commit[41];
    char **files; /* owned */
    size_t count, capacity;
};

/* The answer of /api/models/ORG/NAME/revision/REVISION. Fails: KVA_EFORMAT, KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_hub_listing_parse(const char *json, size_t length,
                                                     struct kva_hub_listing *ret,
                                                     struct kva_err *err);

/* One more; false: out of memory, or over 20,000. */
bool kva_hub_listing_add(struct kva_hub_listing *listing, const char *file);
bool kva_hub_listing_has(const struct kva_hub_listing *listing, const char *file);
void kva_hub_listing_finish(struct kva_hub_listing *listing);

/* The chosen files, in the order in which they are best fetched. */
struct kva_hub_choice {
    struct kva_hub_listing files; /* names that are safe as paths, owned */
    bool gguf;                    /* the model is the first file, else the folder */
    bool index;   /* the first file is an index of weights, which names further ones */
    bool settled; /* nothing is missing that a checkpoint commonly has */
};

/* `wanted`: a GGUF file's path or quantisation; "": not said. `repository` is for messages. Fails:
 * KVA_ENOTFOUND (no such file), KVA_EINVAL (several that could be meant; they are named),
 * KVA_EUNSUPPORTED (no model that can be served), KVA_EFORMAT (a name that is no path),
 * KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_hub_listing_choose(const struct kva_hub_listing *listing,
                                                      const char *wanted, const char *repository,
                                                      struct kva_hub_choice *ret,
                                                      struct kva_err *err);
void kva_hub_choice_finish(struct kva_hub_choice *choice);

/* The files that an index of weights names are added to the choice. Fails: KVA_EFORMAT, KVA_ENOMEM.
 */
KVA_MUST_CHECK enum kva_status kva_hub_choice_add_index(struct kva_hub_choice *choice,
                                                        const char *json, size_t length,
                                                        struct kva_err *err);

#endif
