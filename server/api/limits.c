/* limits.c - how much one request may ask for: what it is by itself, and what an operator says. */
#include "server/api/api.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

void kva_api_limits_default(struct kva_api_limits *limits)
{
    *limits = (struct kva_api_limits){
        .prompts_max = 256,
        .inputs_max = 2048,
        .choices_max = 1024,
        .n_max = 128,
        .best_of_max = 20,
        .messages_max = 65536,
        .stop_bytes_max = 1024,
        .stop_ids_max = 128,
        .logit_bias_max = 1024,
        .allowed_ids_max = 65536,
        .bad_words_max = 256,
        .bad_word_bytes = 256,
        .cache_salt_bytes = 256,
        .priority_min = -100,
        .priority_max = 100,
        .arena_bytes_max = (size_t)64 << 20,
    };
    kva_json_limits_default(&limits->json);
}

/* n and best_of of as many prompts as there may be are counted in 32 bits. */
static const struct {
    const char *name;
    size_t offset;
    uint32_t max;
} names[] = {
    {"prompts", offsetof(struct kva_api_limits, prompts_max), 65536},
    {"inputs", offsetof(struct kva_api_limits, inputs_max), 65536},
    {"choices", offsetof(struct kva_api_limits, choices_max), 65536},
    {"n", offsetof(struct kva_api_limits, n_max), 4096},
    {"best_of", offsetof(struct kva_api_limits, best_of_max), 4096},
    {"messages", offsetof(struct kva_api_limits, messages_max), 1048576},
    {"stop_bytes", offsetof(struct kva_api_limits, stop_bytes_max), 65536},
    {"stop_token_ids", offsetof(struct kva_api_limits, stop_ids_max), 65536},
    {"logit_bias", offsetof(struct kva_api_limits, logit_bias_max), 65536},
    {"allowed_token_ids", offsetof(struct kva_api_limits, allowed_ids_max), 1048576},
    {"bad_words", offsetof(struct kva_api_limits, bad_words_max), 65536},
};

enum kva_status kva_api_limits_set(struct kva_api_limits *limits, const char *text,
                                   struct kva_err *err)
{
    const char *equals = strchr(text, '=');
    size_t length = equals ? (size_t)(equals - text) : strlen(text);
    for (size_t i = 0; i < KVA_COUNT_OF(names); i++) {
        if (strlen(names[i].name) != length || strncmp(names[i].name, text, length) != 0)
            continue;
        char *end = NULL;
        errno = 0;
        unsigned long value =
            equals && equals[1] >= '0' && equals[1] <= '9' ? strtoul(equals + 1, &end, 10) : 0;
        if (!end || *end != '\0' || errno || value < 1 || value > names[i].max)
            return kva_fail(err, KVA_EINVAL, "--request-limit '%.100s': %s is 1 to %u", text,
                            names[i].name, names[i].max);
        *(uint32_t *)((char *)limits + names[i].offset) = (uint32_t)value;
        return KVA_OK;
    }
    return kva_fail(err, KVA_EINVAL,
                    "--request-limit '%.100s' is not NAME=NUMBER with one of the names prompts, "
                    "inputs, choices, n, best_of, messages, stop_bytes, stop_token_ids, "
                    "logit_bias, allowed_token_ids, bad_words",
                    text);
}
