/* stop.h - SIGINT, SIGTERM and SIGHUP as a wish that work in progress looks at, so that it can clean
 * up behind itself; the process ends by the signal all the same, a moment later.
 *
 * Thread rule: main thread; one piece of work at a time. */
#ifndef KVA_CLI_STOP_H
#define KVA_CLI_STOP_H

#include <stdatomic.h>

/* From now on signals set the flag, which is returned. A signal that was ignored still is: nohup's
 * wish, or that of a shell for what runs in its background. */
const atomic_bool *kva_cli_stop_begin(void);

/* From now on they do what they did before. If one came meanwhile, `message` goes to standard error
 * and the process ends by it. */
void kva_cli_stop_end(const char *message);

#endif
