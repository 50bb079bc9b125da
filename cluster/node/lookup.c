/* lookup.c - see lookup.h. */
#include "cluster/node/lookup.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct kva_lookup {
    kva_lookup_resolve resolve;
    atomic_uint users; /* who asked, and the thread; the last one frees it */
    atomic_bool done;  /* what follows is there */
    enum kva_status status;
    struct kva_err err;
    char found[KVA_LINK_ADDRESS_TEXT];
    char address[];
};

static void let_go(struct kva_lookup *lookup)
{
    if (atomic_fetch_sub(&lookup->users, 1) == 1)
        free(lookup);
}

static void resolve(struct kva_lookup *lookup, kva_lookup_resolve how)
{
    struct kva_link_address found;
    lookup->status = how(lookup->address, false, &found, &lookup->err);
    if (!lookup->status)
        kva_link_address_write(&found.socket, lookup->found);
}

static void *run(void *opaque)
{
    struct kva_lookup *lookup = opaque;
    resolve(lookup, lookup->resolve);
    atomic_store(&lookup->done, true);
    let_go(lookup);
    return NULL;
}

/* False: the system refuses a thread. */
static bool begin_thread(struct kva_lookup *lookup)
{
    pthread_t thread;
    atomic_store(&lookup->users, 2);
    if (pthread_create(&thread, NULL, run, lookup)) {
        atomic_store(&lookup->users, 1);
        return false;
    }
    pthread_detach(thread);
    return true;
}

enum kva_status kva_lookup_begin(const char *address, kva_lookup_resolve how,
                                 struct kva_lookup **ret, struct kva_err *err)
{
    const size_t bytes = strlen(address) + 1;
    struct kva_lookup *lookup = calloc(1, sizeof(*lookup) + bytes);
    if (!lookup)
        return kva_fail(err, KVA_ENOMEM, "no memory to look '%s' up", address);
    memcpy(lookup->address, address, bytes);
    lookup->resolve = how;
    atomic_init(&lookup->users, 1);
    resolve(lookup, kva_link_address_read);
    if (!lookup->status) {
        atomic_store(&lookup->done, true);
    } else if (!begin_thread(lookup)) {
        kva_lookup_end(lookup);
        return kva_fail(err, KVA_ENOMEM, "no thread to look '%s' up", address);
    }
    *ret = lookup;
    return KVA_OK;
}

bool kva_lookup_is_done(struct kva_lookup *lookup)
{
    return atomic_load(&lookup->done);
}

enum kva_status kva_lookup_take(const struct kva_lookup *lookup, char ret[KVA_LINK_ADDRESS_TEXT],
                                struct kva_err *err)
{
    if (lookup->status) {
        *err = lookup->err;
        return lookup->status;
    }
    memcpy(ret, lookup->found, sizeof(lookup->found));
    return KVA_OK;
}

void kva_lookup_end(struct kva_lookup *lookup)
{
    if (lookup)
        let_go(lookup);
}
