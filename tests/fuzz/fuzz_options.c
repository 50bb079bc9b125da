/* fuzz_options.c - command line and configuration file, from any bytes.
 *
 * Up to a line "----" each line is an argument, what is behind it is the configuration file. What
 * is accepted lies within the ranges of the table. */
#include "tests/fuzz/fuzz.h"

#include "config/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char file_path[64];

static void require(bool condition)
{
    if (!condition)
        abort();
}

static const char *env(const char *name)
{
    return strcmp(name, "KVAHEAD_CONFIG") == 0 && file_path[0] ? file_path : NULL;
}

static void check_range(const struct kva_option *option, double value)
{
    require(value >= option->min && value <= option->max);
}

static void check_value(const struct kva_option *option, const void *at)
{
    uint32_t words = 0;
    switch (option->kind) {
    case KVA_OPTION_UINT:
    case KVA_OPTION_BYTES:
    case KVA_OPTION_DURATION:
        check_range(option, (double)*(const uint64_t *)at);
        break;
    case KVA_OPTION_INT:
        check_range(option, (double)*(const int64_t *)at);
        break;
    case KVA_OPTION_NUMBER:
        check_range(option, *(const double *)at);
        break;
    case KVA_OPTION_CHOICE:
        while (option->choices[words])
            words++;
        require(*(const uint32_t *)at < words);
        break;
    case KVA_OPTION_LIST:
    case KVA_OPTION_SECRETS:
        require(((const struct kva_string_list *)at)->count <= KVA_LIST_MAX);
        break;
    case KVA_OPTION_BOOL:
    case KVA_OPTION_STRING:
    case KVA_OPTION_SECRET:
        break;
    }
}

static void check(const struct kva_config *config, enum kva_command command)
{
    size_t count;
    const struct kva_option *options = kva_options(&count);
    for (size_t i = 0; i < count; i++) {
        if (options[i].commands & command)
            check_value(&options[i], (const unsigned char *)config + options[i].offset);
    }
}

static void load(enum kva_command command, int argc, char **argv)
{
    struct kva_config config;
    struct kva_string_list rest;
    struct kva_err err = {0};
    const struct kva_config_sources sources = {command, argc, argv, env};
    require(kva_config_init(&config, &err) == KVA_OK);
    enum kva_status status = kva_config_load(&config, &sources, &rest, &err);
    require(status == KVA_OK || err.message[0] != '\0');
    if (!status)
        check(&config, command);
    kva_config_finish(&config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char mark[] = "\n----\n";
    const uint8_t *split = size > 0 ? memmem(data, size, mark, sizeof(mark) - 1) : NULL;
    size_t length = split ? (size_t)(split - data) : size;
    char *argv[128], *text = malloc(length + 1);
    int argc = 0, fd = -1;
    require(text != NULL);
    if (length > 0)
        memcpy(text, data, length);
    text[length] = '\0';
    for (char *line = strtok(text, "\n"); line && argc < (int)KVA_COUNT_OF(argv);
         line = strtok(NULL, "\n")) {
        /* No file but ours: a fuzzer that may name one reads the machine. */
        if (strncmp(line, "--config", 8) != 0)
            argv[argc++] = line;
    }
    file_path[0] = '\0';
    if (split) {
        const uint8_t *rest = split + sizeof(mark) - 1;
        size_t rest_bytes = size - length - (sizeof(mark) - 1);
        fd = memfd_create("config", MFD_CLOEXEC);
        require(fd >= 0 && write(fd, rest, rest_bytes) == (ssize_t)rest_bytes);
        snprintf(file_path, sizeof(file_path), "/proc/self/fd/%d", fd);
    }
    for (uint32_t bit = 1; bit <= KVA_CMD_LAST; bit <<= 1)
        load((enum kva_command)bit, argc, argv);
    if (fd >= 0)
        close(fd);
    free(text);
    return 0;
}
