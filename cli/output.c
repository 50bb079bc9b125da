/* output.c - results to a file or standard output. */
#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

bool kva_cli_is_stdout(const char *path)
{
    return path && strcmp(path, KVA_CLI_STDOUT) == 0;
}

enum kva_status kva_cli_check_writable(const char *path, struct kva_err *err)
{
    if (!path || kva_cli_is_stdout(path))
        return KVA_OK;
    FILE *file = fopen(path, "ab");
    if (!file)
        return kva_fail(err, KVA_EIO, "'%s': %s", path, strerror(errno));
    fclose(file);
    return KVA_OK;
}

enum kva_status kva_cli_write(const char *path, const struct kva_buf *text, struct kva_err *err)
{
    bool standard = kva_cli_is_stdout(path);
    FILE *file = standard ? stdout : fopen(path, "wb");
    bool ok = file && !text->failed && fwrite(text->data, 1, text->length, file) == text->length;
    if (file)
        ok = (standard ? fflush(file) : fclose(file)) == 0 && ok;
    if (!ok)
        return kva_fail(err, KVA_EIO, "'%s': %s", standard ? "standard output" : path,
                        text->failed ? "too large" : strerror(errno));
    return KVA_OK;
}
