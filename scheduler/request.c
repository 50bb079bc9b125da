/* request.c - a request and its arena. */
#include "scheduler/scheduler.h"

struct kva_request *kva_request_create(size_t arena_limit_bytes)
{
    struct kva_arena arena;
    kva_arena_init(&arena, arena_limit_bytes);
    struct kva_request *request = kva_arena_alloc(&arena, sizeof(*request));
    if (!request) {
        kva_arena_finish(&arena);
        return NULL;
    }
    request->arena = arena;
    return request;
}

void kva_request_destroy(struct kva_request *request)
{
    if (!request)
        return;
    kva_constraint_release(request->sampling.constraint);
    /* The arena holds the structure that it is a member of. */
    struct kva_arena arena = request->arena;
    kva_arena_finish(&arena);
}
