/* front.h - what the options say of the front end, for those who serve and those who check.
 *
 * Thread rule: main thread. */
#ifndef KVA_CLI_FRONT_H
#define KVA_CLI_FRONT_H

#include "cli/instance.h"
#include "server/server.h"

struct kva_cli_front {
    struct kva_server_params params; /* borrow from the config and from here */
    char *admin_host;
    char *agent_host;
};

/* Fails: KVA_EINVAL (--admin-listen, --cors-origin, --allowed-host), KVA_ENOMEM; what there is, is
 * finished all the same. */
KVA_MUST_CHECK enum kva_status kva_cli_front_init(struct kva_cli_front *front,
                                                  const struct kva_config *config,
                                                  struct kva_err *err);
void kva_cli_front_finish(struct kva_cli_front *front);

/* A model that the default policy cannot serve is refused at the start, not with every request.
 * Fails: KVA_EINVAL, KVA_EUNSUPPORTED. */
KVA_MUST_CHECK enum kva_status kva_cli_check_default(const struct kva_cli_instance *instance,
                                                     struct kva_err *err);

#endif
