/* ucx.c - see ucx.h. */
#include "cluster/link/ucx.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>

struct kva_ucx kva_ucx;

static const char library[] = "libucp.so.0";
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char why[256]; /* it could not be loaded; "": it was */

static void load(void)
{
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    static const struct {
        const char *name;
        void *at;
    } functions[] = {
#define KVA_UCX_ENTRY(name) {"ucp_" #name, &kva_ucx.name},
        KVA_UCP_FUNCTIONS(KVA_UCX_ENTRY)
#undef KVA_UCX_ENTRY
            {"ucs_status_string", &kva_ucx.status_string},
        {"ucs_log_push_handler", &kva_ucx.log_push_handler},
    };
    struct sigaction before[KVA_COUNT_OF(numbers)];
    for (size_t i = 0; i < KVA_COUNT_OF(numbers); i++)
        sigaction(numbers[i], NULL, &before[i]);
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    for (size_t i = 0; i < KVA_COUNT_OF(numbers); i++)
        sigaction(numbers[i], &before[i], NULL);
    if (!handle) {
        snprintf(why, sizeof(why), "%s", dlerror());
        return;
    }
    for (size_t i = 0; i < KVA_COUNT_OF(functions); i++) {
        *(void **)functions[i].at = dlsym(handle, functions[i].name);
        if (!*(void **)functions[i].at)
            snprintf(why, sizeof(why), "%s has no %s", library, functions[i].name);
    }
}

enum kva_status kva_ucx_load(struct kva_err *err)
{
    pthread_once(&once, load);
    return why[0] ? kva_fail(err, KVA_EUNSUPPORTED, "no UCX (Debian: libucx0): %s", why) : KVA_OK;
}
