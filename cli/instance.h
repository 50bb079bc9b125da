/* instance.h - a model made ready from the options: files, tokenizer, template, device, engine.
 *
 * Thread rule: main thread opens and closes; the parts follow their own rules in between. */
#ifndef KVA_CLI_INSTANCE_H
#define KVA_CLI_INSTANCE_H

#include "cli/kv.h"
#include "config/options.h"
#include "engine/model_engine.h"
#include "text/template/template.h"
#include "text/tokenizer/tokenizer.h"

#include <stdatomic.h>

struct kva_cli_cluster;

struct kva_cli_instance {
    struct kva_cli_kv kv; /* what the options say of KV policies */
    struct kva_device *device;
    bool on_gpu;
    uint32_t gpu_index;
    char device_why[512]; /* why not a GPU, where `auto` chose the CPU; else "" */
    struct kva_model *model;
    struct kva_tokenizer *tokenizer;
    struct kva_template *chat_template; /* NULL: the model has none, or nobody needs it */
    struct kva_template *tool_template; /* the model's own for requests with tools, beside its
                                         * default ("tool_use"); NULL: that is for all requests */
    struct kva_engine *engine;
    struct kva_cli_cluster *cluster; /* cluster.h; NULL: it is in none */
    const atomic_bool *cancelled;    /* while it is opened; or NULL */
    char name[256];                  /* what clients call it */
};

/* What a command needs of a model's texts. */
enum kva_cli_texts {
    KVA_CLI_TEXTS_IF_ANY, /* it works on token ids: a tokenizer where the model has one */
    KVA_CLI_TEXTS,        /* a tokenizer */
    KVA_CLI_TEXTS_CHATS,  /* and the chat templates, where the model has any */
};

/* Opens everything, with a progress bar on a terminal. Fails with an err that names the file or
 * option at fault; the instance is then empty. With KVA_ECANCELLED at the next piece of work once
 * *cancelled is set; NULL: never. */
KVA_MUST_CHECK enum kva_status
kva_cli_instance_open(struct kva_cli_instance *instance, const struct kva_config *config,
                      enum kva_cli_texts texts, const atomic_bool *cancelled, struct kva_err *err);

/* An engine by other options, on the same device and model; all sequences must have been destroyed.
 * On failure the instance has no engine. */
KVA_MUST_CHECK enum kva_status kva_cli_instance_renew_engine(struct kva_cli_instance *instance,
                                                             const struct kva_config *config,
                                                             struct kva_err *err);

/* Whether the model makes text. Fails: KVA_EUNSUPPORTED. */
KVA_MUST_CHECK enum kva_status kva_cli_instance_check_head(const struct kva_cli_instance *instance,
                                                           struct kva_err *err);

void kva_cli_instance_close(struct kva_cli_instance *instance);

/* One more handle of the same device as the instance's, with its own threads on a CPU. */
KVA_MUST_CHECK enum kva_status kva_cli_instance_open_device(const struct kva_cli_instance *instance,
                                                            const struct kva_config *config,
                                                            uint32_t threads,
                                                            struct kva_device **ret,
                                                            struct kva_err *err);

/* Of a GPU's memory, what the model's weights and scratch leave for the device tier; 0 on a CPU. */
uint64_t kva_cli_instance_gpu_room(const struct kva_cli_instance *instance);

/* Whether a GPU is here and can be used: `ret` is then its name, else why not. */
bool kva_cli_instance_find_gpu(char *ret, size_t size);

#endif
