/* chat.c - the options of `kvahead chat` for the chat client. */
#include "clients/chat/chat.h"
#include "cli/cli.h"

#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>

/* Line editing takes the locale's characters. Servers speak UTF-8, so a locale that does not is
 * replaced. */
static void use_utf8(void)
{
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

int kva_cli_chat(const struct kva_config *config, const struct kva_string_list *rest)
{
    struct kva_err err;
    if (rest->count > 0)
        return kva_cli_unexpected("chat", rest, "messages come from standard input");
    use_utf8();
    const struct kva_chat_params params = {
        .url = config->url,
        .api_key = config->api_keys.count > 0 ? config->api_keys.items[0] : NULL,
        .ca_file = config->tls_ca,
        .model = config->model_name,
        .system = config->system,
        .max_tokens = config->max_tokens,
        .temperature = config->temperature,
        .top_p = config->top_p,
        .seed = config->seed,
        .no_color = !config->color,
    };
    return kva_chat_run(&params, &err) ? kva_cli_fail(&err) : KVA_EXIT_OK;
}
