/* places.c - caches, endpoint and token, read from the environment. */
#include "hub/places.h"

#include "base/file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define ENDPOINT_DEFAULT "https://huggingface.co"
#define TOKEN_BYTES_MAX  4096u
#define PATH_BYTES_MAX   4096u

/* A variable that is set to something, or NULL. */
static const char *lookup(kva_hub_env_fn env, const char *name)
{
    const char *value = env ? env(name) : NULL;
    return value && *value ? value : NULL;
}

/* `folder`/`rest`; NULL: no folder, or out of memory. */
static char *join(const char *folder, const char *rest)
{
    struct kva_buf path;
    kva_buf_init(&path, PATH_BYTES_MAX);
    if (folder)
        kva_buf_printf(&path, "%s/%s", folder, rest);
    return kva_buf_take(&path, NULL);
}

/* How many bytes of the text are a variable's name. */
static size_t name_bytes(const char *text)
{
    return strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789");
}

/* The path of a variable, as the library reads it where no shell has: a leading "~" is HOME, and $NAME
 * and ${NAME} are what they are set to, or stay. NULL: not set, or out of memory. */
static char *lookup_path(kva_hub_env_fn env, const char *name)
{
    const char *at = lookup(env, name), *home = lookup(env, "HOME");
    struct kva_buf path;
    if (!at)
        return NULL;
    kva_buf_init(&path, PATH_BYTES_MAX);
    if (*at == '~' && (at[1] == '/' || at[1] == '\0') && home) {
        kva_buf_puts(&path, home);
        at++;
    }
    while (*at) {
        const bool braces = at[0] == '$' && at[1] == '{';
        const size_t bytes = at[0] == '$' ? name_bytes(at + 1 + braces) : 0;
        const char *behind = at + 1 + braces + bytes;
        char variable[128];
        const char *value = NULL;
        if (bytes > 0 && bytes < sizeof(variable) && (!braces || *behind == '}')) {
            snprintf(variable, sizeof(variable), "%.*s", (int)bytes, at + 1 + braces);
            value = env(variable);
        }
        if (value)
            kva_buf_puts(&path, value);
        else
            kva_buf_putc(&path, *at);
        at = value ? behind + braces : at + 1;
    }
    return kva_buf_take(&path, NULL);
}

static bool is_true(const char *value)
{
    return value && (strcmp(value, "1") == 0 || strcasecmp(value, "on") == 0 ||
                     strcasecmp(value, "yes") == 0 || strcasecmp(value, "true") == 0);
}

static void find_folders(struct kva_hub_places *places, kva_hub_env_fn env, char **ret_hf_home)
{
    const char *given = lookup(env, "XDG_CACHE_HOME");
    /* As its specification wants it. */
    given = given && *given == '/' ? given : NULL;
    char *hf_home = lookup_path(env, "HF_HOME");
    char *cache = lookup_path(env, "HF_HUB_CACHE");
    cache = cache ? cache : lookup_path(env, "HUGGINGFACE_HUB_CACHE");
    char *home = given ? strdup(given) : join(lookup(env, "HOME"), ".cache");
    places->known_path = join(home, "kvahead/models");
    *ret_hf_home = hf_home ? hf_home : join(home, "huggingface");
    places->cache_path = cache ? cache : join(*ret_hf_home, "hub");
    free(home);
}

static char *find_endpoint(kva_hub_env_fn env)
{
    const char *url = lookup(env, "HF_ENDPOINT");
    url = url ? url : ENDPOINT_DEFAULT;
    size_t length = strlen(url);
    while (length > 0 && url[length - 1] == '/')
        length--;
    return strndup(url, length);
}

/* Blanks and line ends around it are none of it. */
static char *copy_token(const char *text)
{
    text += strspn(text, " \t\r\n");
    size_t length = strcspn(text, " \t\r\n");
    return length > 0 ? strndup(text, length) : NULL;
}

static char *find_token(kva_hub_env_fn env, const char *hf_home)
{
    const char *given = lookup(env, "HF_TOKEN");
    given = given ? given : lookup(env, "HUGGING_FACE_HUB_TOKEN");
    if (given || is_true(lookup(env, "HF_HUB_DISABLE_IMPLICIT_TOKEN")))
        return given ? copy_token(given) : NULL;
    char *named = lookup_path(env, "HF_TOKEN_PATH");
    char *path = named ? named : join(hf_home, "token"), *token = NULL;
    struct kva_buf text;
    kva_buf_init(&text, 2 * TOKEN_BYTES_MAX);
    /* Most people have none. */
    if (path && kva_file_read(AT_FDCWD, path, &text, NULL) == KVA_OK && text.data)
        token = copy_token(text.data);
    kva_buf_finish(&text);
    free(path);
    return token;
}

enum kva_status kva_hub_places_init(struct kva_hub_places *places, kva_hub_env_fn env,
                                    struct kva_err *err)
{
    char *hf_home = NULL;
    *places = (struct kva_hub_places){0};
    find_folders(places, env, &hf_home);
    const char *ca = lookup(env, "SSL_CERT_FILE");
    places->ca_path = ca ? strdup(ca) : NULL;
    const char *offline = lookup(env, "HF_HUB_OFFLINE");
    places->offline = is_true(offline ? offline : lookup(env, "TRANSFORMERS_OFFLINE"));
    places->endpoint = find_endpoint(env);
    places->token = find_token(env, hf_home);
    free(hf_home);
    if (places->endpoint)
        return KVA_OK;
    kva_hub_places_finish(places);
    return kva_fail(err, KVA_ENOMEM, "out of memory for the places of models");
}

void kva_hub_places_finish(struct kva_hub_places *places)
{
    if (places->token)
        explicit_bzero(places->token, strlen(places->token));
    free(places->known_path);
    free(places->cache_path);
    free(places->endpoint);
    free(places->token);
    free(places->ca_path);
    *places = (struct kva_hub_places){0};
}

enum kva_status kva_hub_places_check(const char *path, struct kva_err *err)
{
    return path ? KVA_OK
                : kva_fail(err, KVA_EINVAL,
                           "there is no folder to keep models in: neither HOME nor XDG_CACHE_HOME "
                           "is set");
}

enum kva_status kva_hub_places_check_hub(const struct kva_hub_places *places, struct kva_err *err)
{
    const char *url = places->endpoint, *token = places->token ? places->token : "";
    if ((strncasecmp(url, "http://", 7) != 0 && strncasecmp(url, "https://", 8) != 0) ||
        strpbrk(url, "?#@ \t\r\n"))
        return kva_fail(err, KVA_EINVAL,
                        "HF_ENDPOINT is '%.200s', it must be the base URL of a hub, such as %s",
                        url, ENDPOINT_DEFAULT);
    size_t length = strlen(token);
    if (length > TOKEN_BYTES_MAX)
        return kva_fail(err, KVA_EINVAL, "the token for the hub has %zu bytes, the limit is %u",
                        length, TOKEN_BYTES_MAX);
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)token[i] < 0x21 || (unsigned char)token[i] > 0x7E)
            return kva_fail(err, KVA_EINVAL,
                            "the token for the hub (HF_TOKEN, or the file of HF_TOKEN_PATH) has a "
                            "byte that no header can carry, at %zu",
                            i);
    }
    return KVA_OK;
}
