/* text.c - messages of failure, and text from arguments or standard input. */
#include "cli/cli.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_BYTES_MAX ((size_t)64 << 20)

int kva_cli_unexpected(const char *command, const struct kva_string_list *rest, const char *instead)
{
    fprintf(stderr, "kvahead: %s takes options only, not '%s'%s%s\n", command, rest->items[0],
            instead ? "; " : "", instead ? instead : "");
    return KVA_EXIT_USAGE;
}

int kva_cli_fail(const struct kva_err *err)
{
    struct pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT};
    /* A pipe that nobody reads must not keep the process from ending. */
    if (poll(&ready, 1, 1000) > 0)
        fprintf(stderr, "kvahead: %s\n", err->message);
    return KVA_EXIT_FAILURE;
}

static void read_input(struct kva_buf *text)
{
    char block[65536];
    size_t length;
    while ((length = fread(block, 1, sizeof(block), stdin)) > 0 && !text->failed)
        kva_buf_append(text, block, length);
}

char *kva_cli_text(const struct kva_string_list *rest, size_t *ret_length)
{
    struct kva_buf text;
    kva_buf_init(&text, TEXT_BYTES_MAX);
    for (uint32_t i = 0; i < rest->count; i++)
        kva_buf_printf(&text, "%s%s", i ? " " : "", rest->items[i]);
    if (rest->count == 0)
        read_input(&text);
    if (text.failed)
        fprintf(stderr, "kvahead: the text is over %zu bytes, or memory is out\n", TEXT_BYTES_MAX);
    else if (text.length == 0)
        fprintf(stderr, "kvahead: no text given\n");
    bool some = !text.failed && text.length > 0;
    char *data = some ? kva_buf_take(&text, ret_length) : NULL;
    kva_buf_finish(&text);
    return data;
}
