#include "tests/alloc_guard.h"

#include <stdatomic.h>
#include <stddef.h>

static atomic_bool armed;
static atomic_uint_fast64_t count;
static atomic_uint_fast64_t countdown = UINT64_MAX;
static atomic_bool failed;

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *data, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *data, size_t size);

static bool refuse(void)
{
    if (atomic_load(&armed))
        atomic_fetch_add(&count, 1);
    uint64_t left = atomic_load(&countdown);
    if (left == UINT64_MAX)
        return false;
    atomic_store(&countdown, left == 0 ? UINT64_MAX : left - 1);
    if (left == 0)
        atomic_store(&failed, true);
    return left == 0;
}

void *__wrap_malloc(size_t size)
{
    return refuse() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return refuse() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *data, size_t size)
{
    return refuse() ? NULL : __real_realloc(data, size);
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

void alloc_guard_fail_at(uint64_t n)
{
    atomic_store(&failed, false);
    atomic_store(&countdown, n);
}

bool alloc_guard_failed(void)
{
    return atomic_load(&failed);
}
