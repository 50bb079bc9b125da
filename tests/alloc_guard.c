#include "tests/alloc_guard.h"

#include <stdatomic.h>
#include <string.h>

enum failing { NONE, ONE, ALL };

static atomic_bool armed;
static atomic_uint_fast64_t count;
static atomic_int failing = NONE;
static atomic_int_fast64_t left; /* allocations until one fails */
static atomic_uint_fast64_t failed;
static bool (*concerns_thread)(void);

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *data, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *data, size_t size);
char *__wrap_strdup(const char *text);

bool alloc_guard_refuse(void)
{
    bool counts = atomic_load(&armed);
    int mode = atomic_load(&failing);
    if ((!counts && mode == NONE) || (concerns_thread && !concerns_thread()))
        return false;
    if (counts)
        atomic_fetch_add(&count, 1);
    if (mode == NONE)
        return false;
    int_fast64_t before = atomic_fetch_sub(&left, 1);
    bool fails = before == 0 || (before < 0 && mode == ALL);
    if (fails)
        atomic_fetch_add(&failed, 1);
    return fails;
}

void *__wrap_malloc(size_t size)
{
    return alloc_guard_refuse() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return alloc_guard_refuse() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *data, size_t size)
{
    return alloc_guard_refuse() ? NULL : __real_realloc(data, size);
}

char *__wrap_strdup(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = __wrap_malloc(size);
    return copy ? memcpy(copy, text, size) : NULL;
}

void *alloc_guard_malloc(size_t size)
{
    return __wrap_malloc(size);
}

void alloc_guard_arm(void)
{
    atomic_store(&count, 0);
    atomic_store(&armed, true);
}

uint64_t alloc_guard_disarm(void)
{
    atomic_store(&armed, false);
    return atomic_load(&count);
}

static void fail(uint64_t n, enum failing mode)
{
    atomic_store(&failed, 0);
    atomic_store(&left, (int_fast64_t)n);
    atomic_store(&failing, mode);
}

void alloc_guard_fail_at(uint64_t n)
{
    fail(n, ONE);
}

void alloc_guard_fail_from(uint64_t n)
{
    fail(n, ALL);
}

uint64_t alloc_guard_fail_none(void)
{
    atomic_store(&failing, NONE);
    return atomic_load(&failed);
}

void alloc_guard_only(bool (*concerns)(void))
{
    concerns_thread = concerns;
}
