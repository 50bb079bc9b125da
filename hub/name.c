/* name.c - the parser of model names, and which names are safe as paths. */
#include "hub/name.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define PART_BYTES_MAX      96u
#define PATH_BYTES_MAX      512u
#define COMPONENT_BYTES_MAX 255u

/* As the hub has it: letters, digits, '-', '_' and '.', neither '-' nor '.' first or last, no "--"
 * (it separates the parts of a folder's name in the cache) and no "..". */
static bool is_part(const char *text, size_t length)
{
    if (length == 0 || length > PART_BYTES_MAX)
        return false;
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        bool mark = c == '-' || c == '.';
        if (!mark && c != '_' && (c > 0x7F || !isalnum(c)))
            return false;
        if (mark && (i == 0 || i + 1 == length || text[i - 1] == (char)c))
            return false;
    }
    return true;
}

static bool ends_with(const char *text, size_t length, const char *end)
{
    size_t bytes = strlen(end);
    return length >= bytes && memcmp(text + length - bytes, end, bytes) == 0;
}

bool kva_hub_name_is_safe(const char *path)
{
    size_t length = strlen(path);
    if (length == 0 || length > PATH_BYTES_MAX)
        return false;
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)path[i];
        if (c < 0x20 || c == 0x7F || c == '\\')
            return false;
    }
    for (const char *part = path;; part++) {
        size_t bytes = strcspn(part, "/");
        if (bytes == 0 || bytes > COMPONENT_BYTES_MAX || (bytes == 1 && part[0] == '.') ||
            (bytes == 2 && part[0] == '.' && part[1] == '.'))
            return false;
        part += bytes;
        if (!*part)
            return true;
    }
}

bool kva_hub_name_is_commit(const char *text)
{
    return strlen(text) == 40 && strspn(text, "0123456789abcdef") == 40;
}

/* Branches and tags: letters, digits and some marks, in parts. */
static bool is_revision(const char *text)
{
    for (const char *c = text; *c; c++) {
        if ((unsigned char)*c > 0x7F || (!isalnum((unsigned char)*c) && !strchr("-_./+", *c)))
            return false;
    }
    return kva_hub_name_is_safe(text) && !strstr(text, "..");
}

static enum kva_status parse_repository(const char *text, size_t head, struct kva_hub_name *ret,
                                        struct kva_err *err)
{
    const char *rest = text + head;
    snprintf(ret->repository, sizeof(ret->repository), "%.*s", (int)head, text);
    snprintf(ret->revision, sizeof(ret->revision), "%s", KVA_HUB_REVISION_DEFAULT);
    if (*rest == '@') {
        size_t length = strcspn(rest + 1, ":");
        if (length >= sizeof(ret->revision))
            return kva_fail_param(err, KVA_EINVAL, "model", "'%.100s...': the revision is too long",
                                  text);
        snprintf(ret->revision, sizeof(ret->revision), "%.*s", (int)length, rest + 1);
        if (!is_revision(ret->revision))
            return kva_fail_param(err, KVA_EINVAL, "model",
                                  "'%.200s': '%.100s' is not a revision: a branch, a tag or a "
                                  "commit of 40 digits",
                                  text, ret->revision);
        rest += 1 + length;
    }
    if (*rest == ':') {
        if (!kva_hub_name_is_safe(rest + 1))
            return kva_fail_param(err, KVA_EINVAL, "model",
                                  "'%.200s': behind the colon is wanted a file of the repository, "
                                  "or a quantisation such as Q4_K_M",
                                  text);
        snprintf(ret->file, sizeof(ret->file), "%s", rest + 1);
    }
    return KVA_OK;
}

enum kva_status kva_hub_name_parse(const char *text, struct kva_hub_name *ret, struct kva_err *err)
{
    struct kva_hub_name name = {.kind = KVA_HUB_PATH};
    size_t head = strcspn(text, "@:");
    const char *slash = memchr(text, '/', head);
    size_t first = slash ? (size_t)(slash - text) : 0;
    if (*text == '\0')
        return kva_fail_param(err, KVA_EINVAL, "model", "the model's name is empty");
    name.known = kva_hub_known_find(text);
    if (name.known)
        name.kind = KVA_HUB_KNOWN;
    else if (!strchr(text, '/') && *text != '.' && *text != '~')
        name.kind = KVA_HUB_WORD;
    else if (slash && is_part(text, first) && is_part(slash + 1, head - first - 1) &&
             !ends_with(text, head, ".gguf") && !ends_with(text, head, ".safetensors") &&
             !ends_with(text, head, ".git"))
        name.kind = KVA_HUB_REPOSITORY;
    enum kva_status status = KVA_OK;
    if (name.kind == KVA_HUB_REPOSITORY)
        status = parse_repository(text, head, &name, err);
    if (!status)
        *ret = name;
    return status;
}

void kva_hub_name_show(char *to, size_t size, const char *text, size_t length)
{
    snprintf(to, size, "%.*s", (int)(length < size ? length : size - 1), text);
    for (char *c = to; *c; c++) {
        if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7E)
            *c = '?';
    }
}

void kva_hub_name_escape(const char *path, struct kva_buf *out)
{
    for (const char *c = path; *c; c++) {
        unsigned char byte = (unsigned char)*c;
        if (byte < 0x80 && (isalnum(byte) || strchr("-._~/", *c)))
            kva_buf_putc(out, *c);
        else
            kva_buf_printf(out, "%%%02X", byte);
    }
}
