/* bad_words.h - words that must not come, as token ids (inside server/api).
 *
 * Thread rule: pure functions; any thread. */
#ifndef KVA_SERVER_API_BAD_WORDS_H
#define KVA_SERVER_API_BAD_WORDS_H

#include "server/api/fields.h"

/* Bad words as token ids: at the start of a word, and inside a text after a space. */
struct kva_bad_words {
    struct kva_token_list ids; /* all of them, one after another */
    uint32_t *lengths;
    uint32_t count;
};

/* Those of the call; freed by finish, after failures too. Fails: KVA_ENOMEM, KVA_EINVAL. */
KVA_MUST_CHECK enum kva_status kva_bad_words_read(const struct kva_api_config *config,
                                                  const struct kva_api_call *call,
                                                  struct kva_bad_words *list, struct kva_err *err);
void kva_bad_words_finish(struct kva_bad_words *list);

/* Into the request's arena; false: it is too small. */
bool kva_bad_words_copy(struct kva_request *request, const struct kva_bad_words *list);

#endif
