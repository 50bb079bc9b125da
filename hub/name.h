/* name.h - what --model says, taken apart. Nothing is looked up: neither disk nor network.
 *
 *     ./folder, /path/model.gguf, a/b/c      a path
 *     smollm2-135m-instruct                  a model known by name (known.h)
 *     org/name[@revision][:file]             a repository of a hub; `file` is a GGUF file's path
 *                                            in it, or its quantisation, such as Q4_K_M
 *     anything                               a word: a path if there is such a file
 *
 * Thread rule: any thread. */
#ifndef KVA_HUB_NAME_H
#define KVA_HUB_NAME_H

#include "base/buf.h"
#include "base/err.h"
#include "hub/known.h"

#include <stdbool.h>

#define KVA_HUB_REVISION_DEFAULT "main"

enum kva_hub_kind {
    KVA_HUB_PATH,
    KVA_HUB_WORD,
    KVA_HUB_KNOWN,
    KVA_HUB_REPOSITORY,
};

struct kva_hub_name {
    enum kva_hub_kind kind;
    const struct kva_hub_known *known; /* KVA_HUB_KNOWN */
    /* KVA_HUB_REPOSITORY: */
    char repository[200]; /* "org/name" */
    char revision[256];   /* branch, tag or commit */
    char file[520];       /* "": not given */
};

/* Fails: KVA_EINVAL (a repository with a revision or file that cannot be one). */
KVA_MUST_CHECK enum kva_status kva_hub_name_parse(const char *text, struct kva_hub_name *ret,
                                                  struct kva_err *err);

/* Whether `path` names a file below a folder and nothing else: no empty part, no "." or "..", not
 * absolute, no backslash and no control character, parts of at most 255 bytes and 512 in all. */
bool kva_hub_name_is_safe(const char *path);

/* Whether `text` is a commit: 40 digits of lower-case hex. */
bool kva_hub_name_is_commit(const char *text);

/* What a hub says, as people may see it: what does not fit is cut, what is not printable ASCII is
 * '?'. */
void kva_hub_name_show(char *to, size_t size, const char *text, size_t length);

/* A path as a URL has it: all but letters, digits, "-._~" and "/" escaped. */
void kva_hub_name_escape(const char *path, struct kva_buf *out);

#endif
