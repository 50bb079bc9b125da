/* tokenize.c - the command `tokenize`. */
#include "cli/cli.h"
#include "cli/models.h"
#include "text/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS_MAX ((size_t)16 << 20)

static void print_tokens(const struct kva_tokenizer *tokenizer, const struct kva_token_list *list)
{
    struct kva_buf line;
    kva_buf_init(&line, 1 << 20);
    for (size_t i = 0; i < list->count; i++) {
        size_t length = 0;
        const char *bytes = kva_tokenizer_token_bytes(tokenizer, list->ids[i], &length);
        kva_buf_clear(&line);
        kva_buf_json_string(&line, bytes ? bytes : "", length);
        printf("%8d  %s\n", list->ids[i], line.data ? line.data : "");
    }
    kva_buf_finish(&line);
}

static void print_ids(const struct kva_token_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        printf("%s%d", i ? " " : "", list->ids[i]);
    putchar('\n');
}

int kva_cli_tokenize(const struct kva_config *config, const struct kva_string_list *rest)
{
    struct kva_tokenizer *tokenizer;
    struct kva_err err;
    size_t length;
    struct kva_hub_found found;
    if (kva_cli_model_find(config, config->model, false, NULL, &found, &err))
        return kva_cli_fail(&err);
    enum kva_status status = kva_tokenizer_load(found.path, &tokenizer, &err);
    free(found.path);
    if (status)
        return kva_cli_fail(&err);
    char *text = kva_cli_text(rest, &length);
    struct kva_token_list list;
    kva_token_list_init(&list, TOKENS_MAX);
    const struct kva_encode_params params = {.add_special = !config->raw, .parse_special = true};
    int code = KVA_EXIT_FAILURE;
    if (text && kva_tokenizer_encode(tokenizer, text, length, &params, &list, &err)) {
        kva_cli_fail(&err);
    } else if (text) {
        if (config->ids)
            print_ids(&list);
        else
            print_tokens(tokenizer, &list);
        code = KVA_EXIT_OK;
    }
    kva_token_list_finish(&list);
    free(text);
    kva_tokenizer_destroy(tokenizer);
    return code;
}
