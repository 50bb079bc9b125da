/* replay.c - runs a fuzz target over its corpus and over seeded mutations of it, without a fuzzer.
 *
 * Usage: fuzz_<parser> CORPUS_DIR [mutations per file]. Default: some thousands, shared by the
 * files. Prints what it ran; a crash or a sanitizer report fails. */
#include "tests/fuzz/fuzz.h"
#include "tests/random.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX     (4u << 20)
#define MUTATIONS          6000u
#define MUTATIONS_PER_FILE 200u

static uint64_t rng_state;

static size_t rng_below(size_t bound)
{
    return bound ? (size_t)(kva_test_random(&rng_state) % bound) : 0;
}

static uint8_t *read_file(const char *path, size_t *ret_size)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    uint8_t *data = malloc(FILE_BYTES_MAX);
    *ret_size = data ? fread(data, 1, FILE_BYTES_MAX, file) : 0;
    fclose(file);
    return data;
}

/* One to eight small damages: flipped bits, overwritten, removed, repeated or swapped pieces, a cut
 * end. */
static size_t mutate(uint8_t *data, size_t size, size_t capacity)
{
    static const char *const tokens[] = {"0",  "-1",      "1e999", "18446744073709551616",
                                         "\"", "\\u0000", "[[",    "{{",
                                         "{%", "\xFF",    "}",     "null"};
    size_t rounds = 1 + rng_below(8);
    for (size_t i = 0; i < rounds && size > 0; i++) {
        size_t at = rng_below(size);
        size_t length = rng_below(size - at < 64 ? size - at : 64);
        switch (rng_below(6)) {
        case 0:
            data[at] ^= (uint8_t)(1u << rng_below(8));
            break;
        case 1:
            data[at] = (uint8_t)kva_test_random(&rng_state);
            break;
        case 2:
            memmove(data + at, data + at + length, size - at - length);
            size -= length;
            break;
        case 3:
            if (size + length <= capacity) {
                memmove(data + at + length, data + at, size - at);
                size += length;
            }
            break;
        case 4: {
            const char *token = tokens[rng_below(sizeof(tokens) / sizeof(tokens[0]))];
            size_t token_size = strlen(token);
            if (size + token_size <= capacity) {
                memmove(data + at + token_size, data + at, size - at);
                memcpy(data + at, token, token_size);
                size += token_size;
            }
            break;
        }
        default:
            size = at;
            break;
        }
    }
    return size;
}

/* The target gets an allocation of exactly `size` bytes, so that reading past the end is seen. */
static void run_exact(const uint8_t *data, size_t size)
{
    uint8_t *exact = malloc(size ? size : 1);
    if (!exact)
        return;
    memcpy(exact, data, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

static void run_file(const char *path, unsigned mutations)
{
    size_t size;
    uint8_t *original = read_file(path, &size);
    if (!original) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(1);
    }
    run_exact(original, size);
    size_t capacity = size * 2 + 256;
    uint8_t *work = malloc(capacity);
    rng_state = 0x6B7661ull + size;
    for (unsigned i = 0; work && i < mutations; i++) {
        memcpy(work, original, size);
        run_exact(work, mutate(work, size, capacity));
    }
    free(work);
    free(original);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s CORPUS_DIR [mutations per file]\n", argv[0]);
        return 2;
    }
    struct dirent **entries;
    int count = scandir(argv[1], &entries, NULL, alphasort);
    if (count < 0) {
        fprintf(stderr, "cannot list %s\n", argv[1]);
        return 1;
    }
    unsigned mutations = MUTATIONS / (unsigned)(count + 1);
    if (mutations > MUTATIONS_PER_FILE)
        mutations = MUTATIONS_PER_FILE;
    if (argc > 2)
        mutations = (unsigned)strtoul(argv[2], NULL, 10);
    unsigned files = 0;
    run_exact((const uint8_t *)"", 0);
    for (int i = 0; i < count; i++) {
        char path[4096];
        if (entries[i]->d_name[0] != '.') {
            snprintf(path, sizeof(path), "%s/%s", argv[1], entries[i]->d_name);
            run_file(path, mutations);
            files++;
        }
        free(entries[i]);
    }
    free(entries);
    printf("%u corpus files, %u mutations each\n", files, mutations);
    return files == 0;
}
