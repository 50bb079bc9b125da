/* pull.c - `kvahead pull` and `kvahead list`: models that have names, fetched ahead, and those that
 * have been. */
#include "cli/cli.h"
#include "cli/models.h"

#include <stdio.h>
#include <stdlib.h>

#define LIST_BYTES_MAX ((size_t)16 << 20)

int kva_cli_pull(const struct kva_config *config, const struct kva_string_list *rest)
{
    struct kva_hub_found found;
    struct kva_err err;
    if (rest->count != 1) {
        fprintf(stderr,
                "kvahead: pull wants one model, such as smollm2-135m-instruct or org/name\n");
        return KVA_EXIT_USAGE;
    }
    if (kva_cli_model_find(config, rest->items[0], true, NULL, &found, &err))
        return kva_cli_fail(&err);
    puts(found.path);
    free(found.path);
    return KVA_EXIT_OK;
}

int kva_cli_list(const struct kva_config *config, const struct kva_string_list *rest)
{
    struct kva_hub_places places;
    struct kva_buf text;
    struct kva_err err;
    if (rest->count > 0) {
        fprintf(stderr, "kvahead: list takes no arguments, not '%s'\n", rest->items[0]);
        return KVA_EXIT_USAGE;
    }
    if (kva_hub_places_init(&places, config->env, &err))
        return kva_cli_fail(&err);
    kva_buf_init(&text, LIST_BYTES_MAX);
    enum kva_status status = kva_hub_list(&places, &text, &err);
    kva_hub_places_finish(&places);
    if (!status)
        fputs(text.data ? text.data : "", stdout);
    kva_buf_finish(&text);
    return status ? kva_cli_fail(&err) : KVA_EXIT_OK;
}
