/* data.h - where tests find real models, tokenizers and texts; such tests skip, and say so, where
 * there are none. */
#ifndef KVA_TESTS_DATA_H
#define KVA_TESTS_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Path of `name` in the test data, in a buffer of the caller; NULL, with a line on stdout, if it is
 * absent. */
static inline const char *kva_test_data(const char *name, char *path, size_t size)
{
    const char *root = getenv("KVAHEAD_TEST_DATA");
    snprintf(path, size, "%s/%s", root ? root : "../shared/data", name);
    if (access(path, R_OK) == 0)
        return path;
    printf("SKIPPED: test data '%s' is not on this machine\n", name);
    return NULL;
}

/* Path of a file of the project itself. */
static inline const char *kva_test_source(const char *name, char *path, size_t size)
{
    const char *root = getenv("KVAHEAD_SOURCE_ROOT");
    snprintf(path, size, "%s/%s", root ? root : ".", name);
    return path;
}

/* All bytes of a file and a NUL behind them; the caller frees. NULL, with a line on stdout: it
 * cannot be read. ret_length may be NULL. */
static inline char *kva_test_read(const char *path, size_t *ret_length)
{
    FILE *file = fopen(path, "rb");
    long length = file && fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    char *text = length >= 0 ? malloc((size_t)length + 1) : NULL;
    bool good = text && fseek(file, 0, SEEK_SET) == 0 &&
                fread(text, 1, (size_t)length, file) == (size_t)length;
    if (file)
        fclose(file);
    if (!good) {
        printf("cannot read %s\n", path);
        free(text);
        return NULL;
    }
    text[length] = '\0';
    if (ret_length)
        *ret_length = (size_t)length;
    return text;
}

#endif
