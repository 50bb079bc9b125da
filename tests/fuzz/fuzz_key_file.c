/* fuzz_key_file.c - a file of API keys, and the headers that present a key, from any bytes.
 *
 * Up to a line "----" the bytes are the key file, behind it the value of Authorization; a second
 * such line begins the value of X-API-Key. What is a key in the file is let in, under limits that
 * are in range. */
#include "tests/fuzz/fuzz.h"

#include "base/log.h"
#include "server/auth/auth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void require(bool condition)
{
    if (!condition)
        abort();
}

/* The bytes up to the next mark as a string, which ends at its first NUL as a header does; *at then
 * stands behind the mark. */
static char *next_part(const uint8_t **at, size_t *left, size_t *ret_length)
{
    static const char mark[] = "\n----\n";
    const uint8_t *split = *left ? memmem(*at, *left, mark, sizeof(mark) - 1) : NULL;
    *ret_length = split ? (size_t)(split - *at) : *left;
    char *part = malloc(*ret_length + 1);
    require(part != NULL);
    if (*ret_length > 0)
        memcpy(part, *at, *ret_length);
    part[*ret_length] = '\0';
    size_t skip = split ? *ret_length + sizeof(mark) - 1 : *ret_length;
    *at += skip;
    *left -= skip;
    return part;
}

static enum kva_status present(struct kva_auth *auth, const char *authorization,
                               const char *api_key, int *ret_key)
{
    const struct kva_auth_request request = {authorization, api_key, "192.0.2.1", 1};
    struct kva_err err = {0};
    uint32_t retry_s = 0;
    enum kva_status status = kva_auth_check(auth, &request, ret_key, &retry_s, &err);
    require(status == KVA_OK || err.message[0] != '\0');
    require(status != KVA_ERATE || retry_s > 0);
    return status;
}

static void check_limits(const struct kva_auth *auth, int key)
{
    struct kva_key_limits limits = kva_auth_limits(auth, key);
    uint64_t scope[2];
    require(limits.weight >= 1 && limits.weight <= KVA_KEY_WEIGHT_MAX);
    require(limits.priority_min <= limits.priority_max);
    require(strlen(kva_auth_name(auth, key)) <= KVA_KEY_NAME_MAX);
    kva_auth_scope(auth, key, scope);
    require((scope[0] != 0 || scope[1] != 0) && kva_auth_tenant(auth, key) != 0);
}

/* A line's first word must be a key that works, whatever else the line says. */
static void check_line(struct kva_auth *auth, const char *line)
{
    char header[KVA_KEY_BYTES_MAX + 8];
    size_t length = strcspn(line, " \t\n");
    int key = -2, same = -2;
    if (length == 0 || length > KVA_KEY_BYTES_MAX || line[0] == '#')
        return;
    for (size_t i = 0; i < length; i++) {
        /* Other white space is the file's affair. */
        if (line[i] <= ' ' || line[i] > '~')
            return;
    }
    snprintf(header, sizeof(header), "Bearer %.*s", (int)length, line);
    require(present(auth, header, NULL, &key) == KVA_OK && key >= 0);
    require(present(auth, NULL, header + 7, &same) == KVA_OK && same == key);
    check_limits(auth, key);
    header[7] ^= 1;
    require(present(auth, header, NULL, &same) != KVA_OK || same != key);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *at = data;
    size_t left = size, file_bytes, length;
    char path[64];
    struct kva_auth *auth = NULL;
    struct kva_err err = {0};
    kva_log_setup(STDERR_FILENO, KVA_LOG_OFF, KVA_LOG_TEXT);
    char *file = next_part(&at, &left, &file_bytes);
    char *authorization = next_part(&at, &left, &length);
    char *api_key = next_part(&at, &left, &length);
    int fd = memfd_create("keys", MFD_CLOEXEC);
    require(fd >= 0 && write(fd, file, file_bytes) == (ssize_t)file_bytes);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    const struct kva_auth_params params = {.key_file = path, .defaults = kva_key_limits_default()};
    enum kva_status status = kva_auth_create(&params, &auth, &err);
    require(status == KVA_OK || err.message[0] != '\0');
    if (!status) {
        int key = -2;
        require(kva_auth_required(auth));
        if (present(auth, authorization, *api_key ? api_key : NULL, &key) == KVA_OK)
            check_limits(auth, key);
        /* A NUL in the file ends its line for the server, and the whole text for this check. */
        for (char *line = strlen(file) == file_bytes ? file : NULL; line && *line;
             line += strcspn(line, "\n"), line += *line == '\n')
            check_line(auth, line);
        require(kva_auth_reload(auth, &err) == KVA_OK);
    }
    kva_auth_destroy(auth);
    close(fd);
    free(file);
    free(authorization);
    free(api_key);
    return 0;
}
