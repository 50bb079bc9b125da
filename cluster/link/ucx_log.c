/* ucx_log.c - see internal.h. UCX writes to standard output; here its words go to this program's
 * log. What it warns of, such as a port scan, is for those who look for it; of errors there is one
 * line a second at most, since who is on the network can make them. */
#include "cluster/link/internal.h"

#include "base/clock.h"
#include "base/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

static _Atomic uint64_t last_ns;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool may_speak(void)
{
    uint64_t now_ns = kva_time_ns(), seen_ns = atomic_load(&last_ns);
    if (seen_ns != 0 && now_ns - seen_ns < KVA_NS_PER_S)
        return false;
    return atomic_compare_exchange_strong(&last_ns, &seen_ns, now_ns);
}

static ucs_log_func_rc_t write_line(const char *file KVA_UNUSED, unsigned line KVA_UNUSED,
                                    const char *function KVA_UNUSED, ucs_log_level_t level,
                                    const ucs_log_component_config_t *component KVA_UNUSED,
                                    const char *message, va_list args)
{
    char text[256];
    enum kva_log_level ours = level == UCS_LOG_LEVEL_FATAL   ? KVA_LOG_ERROR
                              : level == UCS_LOG_LEVEL_ERROR ? KVA_LOG_WARN
                                                             : KVA_LOG_DEBUG;
    if (!kva_log_enabled(ours) || (ours == KVA_LOG_WARN && !may_speak()))
        return UCS_LOG_FUNC_RC_STOP;
    vsnprintf(text, sizeof(text), message, args);
    kva_log(ours, "cluster: UCX: %s", text);
    return UCS_LOG_FUNC_RC_STOP;
}

static void take_over(void)
{
    kva_ucx.log_push_handler(write_line);
}

void kva_link_take_ucx_log(void)
{
    pthread_once(&once, take_over);
}
