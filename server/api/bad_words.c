/* bad_words.c - words that must not come, as token ids. */
#include "server/api/bad_words.h"

#include <stdlib.h>
#include <string.h>

static enum kva_status push_bad_word(const struct kva_api_config *config,
                                     struct kva_bad_words *list, const char *text, size_t length,
                                     struct kva_err *err)
{
    size_t before = list->ids.count;
    enum kva_status status =
        kva_tokenizer_encode(config->tokenizer, text, length, NULL, &list->ids, err);
    bool possible = true; /* no other ids than those that can be generated */
    for (size_t i = before; i < list->ids.count; i++)
        possible = possible && (uint32_t)list->ids.ids[i] < config->vocab_size;
    if (!possible)
        list->ids.count = before;
    if (status == KVA_OK && list->ids.count > before)
        list->lengths[list->count++] = (uint32_t)(list->ids.count - before);
    return status;
}

enum kva_status kva_bad_words_read(const struct kva_api_config *config,
                                   const struct kva_api_call *call, struct kva_bad_words *list,
                                   struct kva_err *err)
{
    kva_token_list_init(&list->ids, (size_t)1 << 20);
    list->lengths = calloc((size_t)call->bad_word_count * 2 + 1, sizeof(*list->lengths));
    list->count = 0;
    if (!list->lengths)
        return kva_fail(err, KVA_ENOMEM, "Out of memory for 'bad_words'.");
    enum kva_status status = KVA_OK;
    for (uint32_t i = 0; i < call->bad_word_count && status == KVA_OK; i++) {
        const struct kva_api_text *word = &call->bad_words[i];
        char spaced[1024];
        status = push_bad_word(config, list, word->data, word->length, err);
        if (status == KVA_OK && word->data[0] != ' ' && word->length + 2 <= sizeof(spaced)) {
            spaced[0] = ' ';
            memcpy(spaced + 1, word->data, word->length);
            status = push_bad_word(config, list, spaced, word->length + 1, err);
        }
    }
    return status;
}

void kva_bad_words_finish(struct kva_bad_words *list)
{
    free(list->lengths);
    kva_token_list_finish(&list->ids);
}

bool kva_bad_words_copy(struct kva_request *request, const struct kva_bad_words *list)
{
    struct kva_bad_word *words = kva_arena_calloc(&request->arena, list->count, sizeof(*words));
    uint32_t *ids = kva_arena_calloc(&request->arena, list->ids.count, sizeof(*ids));
    if (!words || !ids)
        return false;
    size_t at = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        words[i] = (struct kva_bad_word){.tokens = ids + at, .count = list->lengths[i]};
        at += list->lengths[i];
    }
    for (size_t i = 0; i < list->ids.count; i++)
        ids[i] = (uint32_t)list->ids.ids[i];
    request->sampling.bad_words = words;
    request->sampling.bad_word_count = list->count;
    return true;
}
