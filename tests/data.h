/* data.h - where tests find real models, tokenizers and texts; such tests skip, and say so, where
 * there are none. */
#ifndef KVA_TESTS_DATA_H
#define KVA_TESTS_DATA_H

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

#endif
