/* key_file.c - one key a line, and what it may use:
 *
 *     KEY [name=WORD] [weight=N] [requests-per-minute=N] [tokens-per-minute=N] [running=N]
 *         [waiting=N] [priority=FROM..TO] [admin]
 *
 * Empty lines and lines that begin with # are ignored. Errors name line and word, never the key. */
#include "base/file.h"
#include "server/auth/internal.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_BYTES_MAX (KVA_KEY_BYTES_MAX + 512u)
#define WORDS                                                                                      \
    "name=, weight=, requests-per-minute=, tokens-per-minute=, running=, waiting=, "               \
    "priority=FROM..TO, admin"

struct place {
    const char *path;
    unsigned line;
};

struct number_word {
    const char *word; /* with its '=' */
    size_t offset;    /* in struct kva_key_limits */
    uint32_t min, max;
};

static const struct number_word number_words[] = {
    {"weight=", offsetof(struct kva_key_limits, weight), 1, KVA_KEY_WEIGHT_MAX},
    {"requests-per-minute=", offsetof(struct kva_key_limits, requests_per_minute), 1, 1000000},
    {"tokens-per-minute=", offsetof(struct kva_key_limits, tokens_per_minute), 1, 2000000000},
    {"running=", offsetof(struct kva_key_limits, running), 1, 1000000},
    {"waiting=", offsetof(struct kva_key_limits, waiting), 1, 1000000},
};

struct kva_key_limits kva_key_limits_default(void)
{
    return (struct kva_key_limits){.weight = 1, .priority_min = 0, .priority_max = INT32_MAX};
}

enum kva_status kva_key_set(struct kva_key *key, const char *text, size_t length,
                            const struct kva_key_limits *defaults, const char *where,
                            struct kva_err *err)
{
    if (length == 0 || length > KVA_KEY_BYTES_MAX)
        return kva_fail(err, KVA_EINVAL, "%s: a key has %zu characters, allowed is 1 to %u.", where,
                        length, KVA_KEY_BYTES_MAX);
    /* What no header can carry can be no key. */
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)text[i] <= ' ' || text[i] == 0x7F)
            return kva_fail(err, KVA_EINVAL,
                            "%s: a key has a space or a control character at position %zu.", where,
                            i + 1);
    }
    *key = (struct kva_key){.live = true, .limits = *defaults};
    kva_auth_digest("key:", text, length, key->digest);
    return KVA_OK;
}

static bool read_whole(const char **at, long long min, long long max, long long *ret)
{
    char *end;
    if (!isdigit((unsigned char)**at) && **at != '-')
        return false;
    errno = 0;
    long long value = strtoll(*at, &end, 10);
    if (end == *at || errno || value < min || value > max)
        return false;
    *at = end;
    *ret = value;
    return true;
}

static enum kva_status read_name(struct kva_key *key, const char *name, const struct place *place,
                                 struct kva_err *err)
{
    size_t length = strlen(name);
    bool ok = length > 0 && length <= KVA_KEY_NAME_MAX;
    for (size_t i = 0; i < length && ok; i++)
        ok = isalnum((unsigned char)name[i]) || strchr("._-@", name[i]);
    if (!ok)
        return kva_fail(err, KVA_EINVAL,
                        "%s:%u: 'name=%.80s': a name has 1 to %u letters, digits, or . _ - @.",
                        place->path, place->line, name, KVA_KEY_NAME_MAX);
    memcpy(key->name, name, length + 1);
    return KVA_OK;
}

static enum kva_status read_priority(struct kva_key_limits *limits, const char *text,
                                     const struct place *place, struct kva_err *err)
{
    long long from = 0, to = 0;
    const char *at = text;
    bool ok = read_whole(&at, -1000, 1000, &from) && strncmp(at, "..", 2) == 0;
    at += ok ? 2 : 0;
    if (!ok || !read_whole(&at, from, 1000, &to) || *at)
        return kva_fail(err, KVA_EINVAL,
                        "%s:%u: 'priority=%.80s': expected FROM..TO, whole numbers from -1000 to "
                        "1000, the smaller first.",
                        place->path, place->line, text);
    limits->priority_min = (int32_t)from;
    limits->priority_max = (int32_t)to;
    return KVA_OK;
}

static enum kva_status read_word(struct kva_key *key, const char *word, const struct place *place,
                                 struct kva_err *err)
{
    for (size_t i = 0; i < KVA_COUNT_OF(number_words); i++) {
        const struct number_word *known = &number_words[i];
        size_t length = strlen(known->word);
        if (strncmp(word, known->word, length) != 0)
            continue;
        const char *at = word + length;
        long long value = 0;
        if (!read_whole(&at, known->min, known->max, &value) || *at)
            return kva_fail(err, KVA_EINVAL,
                            "%s:%u: '%.80s': expected a whole number from %u to %u.", place->path,
                            place->line, word, known->min, known->max);
        unsigned char *field = (unsigned char *)&key->limits + known->offset;
        *(uint32_t *)(void *)field = (uint32_t)value;
        return KVA_OK;
    }
    if (strncmp(word, "name=", 5) == 0)
        return read_name(key, word + 5, place, err);
    if (strncmp(word, "priority=", 9) == 0)
        return read_priority(&key->limits, word + 9, place, err);
    if (strcmp(word, "admin") == 0) {
        key->limits.admin = true;
        return KVA_OK;
    }
    return kva_fail(err, KVA_EINVAL, "%s:%u: unknown word '%.80s'; known are " WORDS ".",
                    place->path, place->line, word);
}

/* Whether the line names the same thing twice. */
static bool repeated(char *const *words, uint32_t count)
{
    const char *word = words[count - 1];
    size_t length = strcspn(word, "=");
    for (uint32_t i = 0; i + 1 < count; i++)
        if (strncmp(words[i], word, length) == 0 && strcspn(words[i], "=") == length)
            return true;
    return false;
}

static enum kva_status read_line(char *line, const struct place *place,
                                 const struct kva_key_limits *defaults, struct kva_key *key,
                                 struct kva_err *err)
{
    static const char blanks[] = " \t\r\n\v\f";
    char where[300];
    char *words[16];
    char *save = NULL;
    uint32_t count = 0;
    snprintf(where, sizeof(where), "%.200s:%u", place->path, place->line);
    char *text = strtok_r(line, blanks, &save);
    enum kva_status status = kva_key_set(key, text, strlen(text), defaults, where, err);
    key->line = place->line;
    for (char *word; !status && (word = strtok_r(NULL, blanks, &save));) {
        if (count == KVA_COUNT_OF(words))
            return kva_fail(err, KVA_EINVAL, "%s: more than %zu words behind the key.", where,
                            KVA_COUNT_OF(words));
        words[count++] = word;
        if (repeated(words, count))
            return kva_fail(err, KVA_EINVAL, "%s: '%.80s' is said twice.", where, word);
        status = read_word(key, word, place, err);
    }
    return status;
}

/* Two keys must be told apart, and so must two names. */
static enum kva_status check_new(const struct kva_key *keys, uint32_t count,
                                 const struct place *place, struct kva_err *err)
{
    const struct kva_key *key = &keys[count];
    for (uint32_t i = 0; i < count; i++) {
        bool same = CRYPTO_memcmp(keys[i].digest, key->digest, DIGEST_BYTES) == 0;
        if (!same && (!key->name[0] || strcmp(keys[i].name, key->name) != 0))
            continue;
        if (keys[i].line == 0)
            return kva_fail(err, KVA_EINVAL,
                            "%s:%u: this key is also given outside the file, by KVAHEAD_API_KEY or "
                            "the configuration.",
                            place->path, place->line);
        return kva_fail(err, KVA_EINVAL, "%s:%u: line %u has the same %s.", place->path,
                        place->line, keys[i].line, same ? "key" : "name");
    }
    return KVA_OK;
}

enum kva_status kva_key_file_read(const char *path, const struct kva_key_limits *defaults,
                                  struct kva_key *keys, uint32_t *count, struct kva_err *err)
{
    char line[LINE_BYTES_MAX + 2];
    struct place place = {.path = path};
    uint32_t before = *count;
    int fd;
    enum kva_status status = kva_file_open(AT_FDCWD, path, &fd, NULL, err);
    if (status)
        return kva_err_prefix(err, status == KVA_ENOTFOUND ? KVA_EIO : status,
                              "Cannot read the key file");
    FILE *file = fdopen(fd, "r");
    if (!file) {
        close(fd);
        return kva_fail(err, KVA_ENOMEM, "Out of memory for the key file.");
    }
    while (status == KVA_OK && fgets(line, sizeof(line), file)) {
        place.line++;
        const char *start = line + strspn(line, " \t\r\n\v\f");
        if (strlen(line) == sizeof(line) - 1 && line[sizeof(line) - 2] != '\n')
            status = kva_fail(err, KVA_EINVAL, "%s:%u: the line is longer than %u characters.",
                              path, place.line, LINE_BYTES_MAX);
        if (status != KVA_OK || !*start || *start == '#')
            continue;
        if (*count == KVA_KEYS_MAX)
            status = kva_fail(err, KVA_EINVAL, "%s has more than %u keys.", path, KVA_KEYS_MAX);
        else
            status = read_line(line, &place, defaults, &keys[*count], err);
        if (status == KVA_OK)
            status = check_new(keys, *count, &place, err);
        *count += status == KVA_OK;
    }
    if (status == KVA_OK && ferror(file))
        status = kva_fail(err, KVA_EIO, "Cannot read the key file '%s': %s", path, strerror(errno));
    fclose(file);
    OPENSSL_cleanse(line, sizeof(line));
    if (status == KVA_OK && *count == before)
        status = kva_fail(err, KVA_EINVAL, "The key file '%s' has no keys.", path);
    return status;
}
