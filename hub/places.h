/* places.h - where models are kept and who is asked for them, as the environment says it.
 *
 * Two caches. Models known by name (known.h) are kept by this program:
 * ${XDG_CACHE_HOME:-~/.cache}/kvahead/models. Repositories of a Hugging Face hub are kept as the
 * library huggingface_hub keeps them, so that either finds what the other has fetched:
 * HF_HUB_CACHE, else HF_HOME/hub, else ${XDG_CACHE_HOME:-~/.cache}/huggingface/hub.
 *
 * Thread rule: one thread makes it, any reads it. */
#ifndef KVA_HUB_PLACES_H
#define KVA_HUB_PLACES_H

#include "base/err.h"

#include <stdbool.h>

/* Looks an environment variable up; NULL: not set. */
typedef const char *(*kva_hub_env_fn)(const char *name);

struct kva_hub_places {
    char *known_path; /* folder of models known by name; NULL: no home, nothing is cached */
    char *cache_path; /* of huggingface_hub; NULL likewise */
    char *endpoint;   /* "https://huggingface.co", or HF_ENDPOINT; no slash at its end */
    char *token;      /* HF_TOKEN, else the first line of the library's file; NULL: none */
    char *ca_path;    /* SSL_CERT_FILE: certificates to trust; NULL: the system's */
    bool offline;     /* HF_HUB_OFFLINE */
};

/* Reads the environment and the token's file. What is wrong with them is said only to who asks a
 * hub: kva_hub_places_check_hub. Fails: KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_hub_places_init(struct kva_hub_places *places,
                                                   kva_hub_env_fn env, struct kva_err *err);
void kva_hub_places_finish(struct kva_hub_places *places);

/* The folder, or why there is none. Fails: KVA_EINVAL. */
KVA_MUST_CHECK enum kva_status kva_hub_places_check(const char *path, struct kva_err *err);

/* Whether a hub can be asked. Fails: KVA_EINVAL (an endpoint that is no URL, a token that no header
 * can carry). */
KVA_MUST_CHECK enum kva_status kva_hub_places_check_hub(const struct kva_hub_places *places,
                                                        struct kva_err *err);

#endif
