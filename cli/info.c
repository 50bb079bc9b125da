/* info.c - the command `info`: a model, and what memory its serving takes. */
#include "cli/cli.h"
#include "cli/instance.h"

#include <stdio.h>

int kva_cli_info(const struct kva_config *config, const struct kva_string_list *rest)
{
    struct kva_cli_instance instance;
    struct kva_err err;
    if (rest->count > 0)
        return kva_cli_unexpected("info", rest, KVA_CLI_BY_MODEL);
    if (kva_cli_instance_open(&instance, config, KVA_CLI_TEXTS_CHATS, NULL, &err))
        return kva_cli_fail(&err);
    struct kva_buf text;
    kva_buf_init(&text, 1 << 16);
    kva_buf_printf(&text, "model         %s\n", instance.name);
    kva_model_describe(instance.model, &text);
    kva_buf_printf(&text, "device        %s%s%s\n", kva_device_get_info(instance.device)->name,
                   instance.device_why[0] ? "; " : "", instance.device_why);
    kva_buf_printf(&text, "chat template %s%s\n", instance.chat_template ? "yes" : "none",
                   instance.tool_template ? ", another for tools" : "");
    kva_model_engine_describe(instance.engine, instance.kv.specs, &text);
    fputs(text.data ? text.data : "", stdout);
    kva_buf_finish(&text);
    kva_cli_instance_close(&instance);
    return KVA_EXIT_OK;
}
