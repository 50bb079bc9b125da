/* json.c - reading a JSON file within bounds. */
#include "engine/model/json.h"

#include "base/file.h"
#include "base/utf8.h"
#include "engine/model/limits.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Where the check stands: one bit per open container says whether it is an object. */
struct scan {
    const char *text;
    size_t length;
    size_t at;
    uint64_t objects;
    unsigned depth;
    unsigned value_count;
    const char *file;
    struct kva_err *err;
};

_Static_assert(KVA_MODEL_JSON_DEPTH_MAX <= 64, "one bit per level");

static enum kva_status scan_fail(const struct scan *scan, const char *wanted)
{
    if (scan->at >= scan->length)
        return kva_fail(scan->err, KVA_EFORMAT, "%s: ends at byte %zu, expected %s", scan->file,
                        scan->at, wanted);
    unsigned char c = (unsigned char)scan->text[scan->at];
    if (c >= 0x20 && c < 0x7F)
        return kva_fail(scan->err, KVA_EFORMAT, "%s: byte %zu is '%c', expected %s", scan->file,
                        scan->at, c, wanted);
    return kva_fail(scan->err, KVA_EFORMAT, "%s: byte %zu is 0x%02x, expected %s", scan->file,
                    scan->at, c, wanted);
}

static int scan_peek(const struct scan *scan)
{
    return scan->at < scan->length ? (unsigned char)scan->text[scan->at] : -1;
}

static void skip_space(struct scan *scan)
{
    int c;
    while ((c = scan_peek(scan)) == ' ' || c == '\t' || c == '\n' || c == '\r')
        scan->at++;
}

static bool scan_digits(struct scan *scan)
{
    size_t start = scan->at;
    while (scan_peek(scan) >= '0' && scan_peek(scan) <= '9')
        scan->at++;
    return scan->at > start;
}

static enum kva_status scan_number(struct scan *scan)
{
    size_t start = scan->at;
    if (scan_peek(scan) == '-')
        scan->at++;
    bool zero = scan_peek(scan) == '0';
    size_t first = scan->at;
    if (!scan_digits(scan))
        return scan_fail(scan, "a digit");
    if (zero && scan->at > first + 1) {
        scan->at = first;
        return scan_fail(scan, "a number without leading zeros");
    }
    if (scan_peek(scan) == '.') {
        scan->at++;
        if (!scan_digits(scan))
            return scan_fail(scan, "a digit");
    }
    if (scan_peek(scan) == 'e' || scan_peek(scan) == 'E') {
        scan->at++;
        if (scan_peek(scan) == '+' || scan_peek(scan) == '-')
            scan->at++;
        if (!scan_digits(scan))
            return scan_fail(scan, "a digit");
    }
    if (scan->at - start > KVA_MODEL_JSON_NUMBER_CHARS_MAX)
        return kva_fail(scan->err, KVA_EFORMAT,
                        "%s: the number at byte %zu has %zu characters, allowed are %u", scan->file,
                        start, scan->at - start, KVA_MODEL_JSON_NUMBER_CHARS_MAX);
    return KVA_OK;
}

/* The four digits after \u; -1 if they are not. */
static int scan_hex4(struct scan *scan)
{
    int value = 0;
    for (int i = 0; i < 4; i++) {
        int c = scan_peek(scan);
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
        scan->at++;
    }
    return value;
}

static enum kva_status scan_escape(struct scan *scan)
{
    scan->at++;
    int c = scan_peek(scan);
    if (c < 0 || c == '\0' || !strchr("\"\\/bfnrtu", c))
        return scan_fail(scan, "one of \"\\/bfnrtu after a backslash");
    scan->at++;
    if (c != 'u')
        return KVA_OK;
    int unit = scan_hex4(scan);
    if (unit < 0)
        return scan_fail(scan, "four hexadecimal digits after \\u");
    if (unit == 0)
        return kva_fail(scan->err, KVA_EFORMAT, "%s: \\u0000 in the string at byte %zu", scan->file,
                        scan->at - 6);
    if (unit < 0xD800 || unit > 0xDFFF)
        return KVA_OK;
    if (unit < 0xDC00 && scan_peek(scan) == '\\') {
        scan->at++;
        if (scan_peek(scan) == 'u') {
            scan->at++;
            int low = scan_hex4(scan);
            if (low >= 0xDC00 && low <= 0xDFFF)
                return KVA_OK;
        }
    }
    return kva_fail(scan->err, KVA_EFORMAT, "%s: half of a surrogate pair before byte %zu",
                    scan->file, scan->at);
}

static enum kva_status scan_string(struct scan *scan, const char *wanted)
{
    if (scan_peek(scan) != '"')
        return scan_fail(scan, wanted);
    scan->at++;
    for (;;) {
        int c = scan_peek(scan);
        if (c < 0x20)
            return scan_fail(scan, "the rest of a string");
        if (c == '"') {
            scan->at++;
            return KVA_OK;
        }
        if (c == '\\') {
            enum kva_status status = scan_escape(scan);
            if (status)
                return status;
        } else if (c < 0x80) {
            scan->at++;
        } else {
            int size = kva_utf8_sequence(scan->text + scan->at, scan->length - scan->at, NULL);
            if (size <= 0)
                return scan_fail(scan, "valid UTF-8");
            scan->at += (size_t)size;
        }
    }
}

static enum kva_status scan_scalar(struct scan *scan)
{
    static const char *const words[] = {"true", "false", "null"};
    int c = scan_peek(scan);
    if (c == '"')
        return scan_string(scan, "a string");
    if (c == '-' || (c >= '0' && c <= '9'))
        return scan_number(scan);
    for (size_t i = 0; i < KVA_COUNT_OF(words); i++) {
        size_t size = strlen(words[i]);
        if (scan->length - scan->at >= size && memcmp(scan->text + scan->at, words[i], size) == 0) {
            scan->at += size;
            return KVA_OK;
        }
    }
    return scan_fail(scan, "a value");
}

enum scan_state { WANT_VALUE, WANT_KEY, AFTER_VALUE };

static bool in_object(const struct scan *scan)
{
    return scan->depth > 0 && (scan->objects >> (scan->depth - 1) & 1);
}

/* At '{' or '[': go in, and out again if it is empty. */
static enum kva_status scan_open(struct scan *scan, enum scan_state *ret_state)
{
    bool object = scan_peek(scan) == '{';
    if (scan->depth == KVA_MODEL_JSON_DEPTH_MAX)
        return kva_fail(scan->err, KVA_EFORMAT,
                        "%s: nested deeper than the allowed %u levels at byte %zu", scan->file,
                        KVA_MODEL_JSON_DEPTH_MAX, scan->at);
    uint64_t bit = 1ull << scan->depth++;
    scan->objects = object ? scan->objects | bit : scan->objects & ~bit;
    scan->at++;
    skip_space(scan);
    if (scan_peek(scan) == (object ? '}' : ']')) {
        scan->at++;
        scan->depth--;
        *ret_state = AFTER_VALUE;
    } else {
        *ret_state = object ? WANT_KEY : WANT_VALUE;
    }
    return KVA_OK;
}

static enum kva_status scan_value(struct scan *scan, enum scan_state *ret_state)
{
    if (scan->value_count++ >= KVA_MODEL_JSON_VALUES_MAX)
        return kva_fail(scan->err, KVA_EFORMAT, "%s: more than the allowed %u values", scan->file,
                        KVA_MODEL_JSON_VALUES_MAX);
    int c = scan_peek(scan);
    if (c == '{' || c == '[')
        return scan_open(scan, ret_state);
    *ret_state = AFTER_VALUE;
    return scan_scalar(scan);
}

static enum kva_status scan_key(struct scan *scan, enum scan_state *ret_state)
{
    enum kva_status status = scan_string(scan, "a field name in quotes");
    if (status)
        return status;
    skip_space(scan);
    if (scan_peek(scan) != ':')
        return scan_fail(scan, "':'");
    scan->at++;
    *ret_state = WANT_VALUE;
    return KVA_OK;
}

enum kva_status kva_model_json_check(const char *text, size_t length, const char *file,
                                     struct kva_err *err)
{
    struct scan scan = {.text = text, .length = length, .file = file, .err = err};
    enum scan_state state = WANT_VALUE;
    for (;;) {
        enum kva_status status = KVA_OK;
        skip_space(&scan);
        if (state == WANT_VALUE) {
            status = scan_value(&scan, &state);
        } else if (state == WANT_KEY) {
            status = scan_key(&scan, &state);
        } else if (scan.depth == 0) {
            return scan.at == length ? KVA_OK : scan_fail(&scan, "the end of the file");
        } else if (scan_peek(&scan) == ',') {
            scan.at++;
            state = in_object(&scan) ? WANT_KEY : WANT_VALUE;
        } else if (scan_peek(&scan) == (in_object(&scan) ? '}' : ']')) {
            scan.at++;
            scan.depth--;
        } else {
            status = scan_fail(&scan, in_object(&scan) ? "',' or '}'" : "',' or ']'");
        }
        if (status)
            return status;
    }
}

static enum kva_status parse(const char *text, size_t length, const char *file, bool list,
                             cJSON **ret, struct kva_err *err)
{
    enum kva_status status = kva_model_json_check(text, length, file, err);
    if (status)
        return status;
    cJSON *root = cJSON_ParseWithLengthOpts(text, length, NULL, false);
    if (!root)
        return kva_fail(err, KVA_ENOMEM, "%s: out of memory while reading %zu bytes of JSON", file,
                        length);
    if (list ? !cJSON_IsArray(root) : !cJSON_IsObject(root)) {
        cJSON_Delete(root);
        return kva_fail(err, KVA_EFORMAT, "%s: the file is not a JSON %s", file,
                        list ? "list" : "object");
    }
    *ret = root;
    return KVA_OK;
}

enum kva_status kva_model_json_parse(const char *text, size_t length, const char *file, cJSON **ret,
                                     struct kva_err *err)
{
    return parse(text, length, file, false, ret, err);
}

enum kva_status kva_model_json_parse_list(const char *text, size_t length, const char *file,
                                          cJSON **ret, struct kva_err *err)
{
    return parse(text, length, file, true, ret, err);
}

/* `bytes` of an open file; a file that changes its size meanwhile is an error. */
static enum kva_status read_all(int fd, const char *name, char *out, size_t bytes,
                                struct kva_err *err)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t got = read(fd, out + done, bytes - done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return kva_fail(err, KVA_EIO, "%s: cannot read: %s", name, strerror(errno));
        if (got == 0)
            return kva_fail(err, KVA_EIO, "%s: ended after %zu of %zu bytes", name, done, bytes);
        done += (size_t)got;
    }
    return KVA_OK;
}

static enum kva_status read_file(int dir_fd, const char *name, size_t bytes_max, bool list,
                                 cJSON **ret, struct kva_err *err)
{
    char *text = NULL;
    enum kva_status status;
    struct stat info;
    int fd;
    status = kva_file_open(dir_fd, name, &fd, &info, err);
    if (status)
        return status;
    if ((uint64_t)info.st_size > bytes_max) {
        status = kva_fail(err, KVA_EFORMAT, "%s has %lld bytes, allowed are %zu", name,
                          (long long)info.st_size, bytes_max);
        goto end;
    }
    text = malloc((size_t)info.st_size + 1);
    if (!text) {
        status = kva_fail(err, KVA_ENOMEM, "%s: out of memory for %lld bytes", name,
                          (long long)info.st_size);
        goto end;
    }
    status = read_all(fd, name, text, (size_t)info.st_size, err);
    if (!status)
        status = parse(text, (size_t)info.st_size, name, list, ret, err);
end:
    free(text);
    close(fd);
    return status;
}

enum kva_status kva_model_json_read(int dir_fd, const char *name, size_t bytes_max, cJSON **ret,
                                    struct kva_err *err)
{
    return read_file(dir_fd, name, bytes_max, false, ret, err);
}

enum kva_status kva_model_json_read_list(int dir_fd, const char *name, size_t bytes_max,
                                         cJSON **ret, struct kva_err *err)
{
    return read_file(dir_fd, name, bytes_max, true, ret, err);
}
