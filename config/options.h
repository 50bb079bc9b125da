/* options.h - every option of kvahead, described once.
 *
 * One table (table.c) gives the command-line flags, the KVAHEAD_* environment variables, the keys
 * of the JSON configuration file, --help and docs/options.md. Later sources lose to earlier ones:
 *
 *     command line  >  environment  >  configuration file  >  default
 *
 * Every value is checked where it is read; an error names the option, the value, where it came from
 * and what is allowed.
 *
 * Thread rule: used by main() before threads start. */
#ifndef KVA_CONFIG_OPTIONS_H
#define KVA_CONFIG_OPTIONS_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>

#define KVA_LIST_MAX 64u

/* Values of an option that may be given several times. */
struct kva_string_list {
    char *items[KVA_LIST_MAX];
    uint32_t count;
};

/* Looks an environment variable up; NULL: not set. Passed in, because only main() may read the
 * environment. */
typedef const char *(*kva_env_fn)(const char *name);

/* All options' values. Strings are owned; NULL: not given. */
struct kva_config {
    kva_env_fn env; /* for variables of other programs that are honoured here; NULL: none is set */
    /* model */
    char *model;
    bool offline;
    char *model_name;
    char *chat_template;
    uint64_t context;
    uint32_t weights; /* enum kva_model_weights */
    char *weights_cache;
    char *skew;
    /* device */
    char *device;
    uint64_t threads;
    uint32_t cpu_levels;
    uint64_t gpu_memory;
    uint64_t device_memory;
    uint64_t host_memory;
    bool prefault;
    /* KV */
    struct kva_string_list kv;
    struct kva_string_list kv_allow;
    uint64_t kv_topk_max;
    uint32_t kv_dtype;
    bool prefix_cache;
    bool prefix_share_keys;
    /* scheduling */
    uint64_t sequences;
    uint64_t step_tokens;
    uint64_t waiting;
    uint64_t prefill_share;
    uint64_t step_time_ms;
    uint64_t waiting_time_ms;
    uint64_t aging_ms;
    /* server */
    char *host;
    uint64_t port;
    char *admin_listen;
    struct kva_string_list allowed_hosts;
    struct kva_string_list api_keys;
    char *api_key_file;
    bool public_without_key;
    uint64_t key_rate;
    uint64_t key_tokens;
    uint64_t key_running;
    uint64_t key_waiting;
    char *tls_cert;
    char *tls_key;
    struct kva_string_list cors_origins;
    uint64_t connections;
    uint64_t idle_per_address;
    struct kva_string_list request_limits;
    uint64_t body_bytes;
    uint64_t bodies_bytes;
    uint64_t bodies_per_key;
    uint64_t header_bytes;
    uint64_t keepalive_ms;
    uint64_t head_timeout_ms;
    uint64_t read_timeout_ms;
    uint64_t write_stall_ms;
    uint64_t request_timeout_ms;
    uint64_t drain_timeout_ms;
    uint64_t workers;
    uint64_t grammar_text_bytes;
    uint64_t grammar_time_ms;
    uint64_t grammar_bytes;
    uint64_t grammar_cache_bytes;
    uint32_t tool_parser;      /* 0: as the template shows, else enum kva_reply_style + 1 */
    uint32_t reasoning_parser; /* 0: as the template shows, 1: none, 2: think */
    uint32_t pooling;          /* 0: as the model's files say, 1: mean, 2: last */
    uint64_t responses_bytes;
    bool metrics_vllm;
    bool live_view;
    bool page;
    bool metrics_keys;
    char *agent_listen;
    /* cluster */
    char *cluster_listen; /* NULL: none */
    char *cluster_name;
    struct kva_string_list cluster_etcd;
    char *cluster_etcd_user;
    char *cluster_etcd_ca;
    char *cluster_secret_file;
    char *cluster_advertise;
    uint64_t cluster_nodes;
    uint64_t cluster_lend; /* percent */
    uint64_t cluster_copy; /* percent */
    bool cluster_keep_home;
    uint64_t cluster_threads;
    uint64_t cluster_answer_ms;
    uint64_t cluster_lease_ms;
    uint64_t cluster_loan_ms;
    uint64_t cluster_recall_ms;
    uint64_t cluster_patience_ms;
    uint32_t cluster_plan; /* enum kva_cluster_plan */
    uint64_t cluster_round_ms;
    uint64_t cluster_wait_ms;
    /* log */
    uint32_t log_level;
    uint32_t log_format;
    /* generate and chat */
    char *prompt;
    char *system;
    uint64_t max_tokens;
    double temperature;
    double top_p;
    int64_t seed;
    char *url;
    char *tls_ca;
    bool color;
    bool ids;
    bool raw;
    /* bench */
    char *bench_prefill;
    char *bench_batch;
    char *bench_depth;
    bool bench_mixed;
    uint64_t bench_repetitions;
    uint64_t bench_row_time_ms;
    struct kva_string_list bench_compare;
    bool bench_profile;
    bool bench_cpu_time;
    /* eval */
    char *eval_text;
    char *eval_prompts;
    char *eval_stream;
    uint64_t eval_tokens;
    uint64_t eval_from; /* 0: half of the context */
    uint64_t eval_windows;
    char *eval_policies;
    uint64_t eval_look;
    char *eval_sparsity;
    char *eval_svg;
    /* skew */
    char *skew_text;
    uint64_t skew_tokens;
    uint64_t skew_planes; /* percent; 0: none */
    uint64_t skew_window; /* 0: the context, up to a limit */
    char *skew_out;
    char *skew_fold;
    bool skew_report;
    /* bench, eval, doctor and skew */
    char *json;
    /* make-model */
    char *shape;
    uint64_t layers;
    uint64_t shard_bytes;
    uint64_t model_seed;
};

/* Commands that an option belongs to. */
enum kva_command {
    KVA_CMD_SERVE = 1u << 0,
    KVA_CMD_GENERATE = 1u << 1,
    KVA_CMD_CHAT = 1u << 2,
    KVA_CMD_TOKENIZE = 1u << 3,
    KVA_CMD_INFO = 1u << 4,
    KVA_CMD_BENCH = 1u << 5,
    KVA_CMD_MAKE_MODEL = 1u << 6,
    KVA_CMD_EVAL = 1u << 7,
    KVA_CMD_PULL = 1u << 8,
    KVA_CMD_LIST = 1u << 9,
    KVA_CMD_DOCTOR = 1u << 10,
    KVA_CMD_SKEW = 1u << 11,
    KVA_CMD_LAST = KVA_CMD_SKEW,
};

enum kva_option_kind {
    KVA_OPTION_STRING,
    KVA_OPTION_LIST,     /* may be repeated */
    KVA_OPTION_SECRET,   /* a string without a flag, which everybody on the machine could read; ""
                            is none */
    KVA_OPTION_SECRETS,  /* a list without a flag, which everybody on the machine could read; its
                            environment variable, and a text in the file, may be several with
                            commas between */
    KVA_OPTION_BOOL,     /* --name, --no-name, --name=true|false */
    KVA_OPTION_UINT,     /* whole number */
    KVA_OPTION_INT,      /* whole number, sign allowed */
    KVA_OPTION_NUMBER,   /* decimal number */
    KVA_OPTION_BYTES,    /* whole number with K, M, G or T (binary) */
    KVA_OPTION_DURATION, /* number with ms, s, m or h; kept in milliseconds */
    KVA_OPTION_CHOICE,   /* one of some words */
};

struct kva_option {
    const char *name; /* "device-memory": --device-memory, KVAHEAD_DEVICE_MEMORY, "device_memory" */
    enum kva_option_kind kind;
    uint32_t commands;
    size_t offset;              /* in struct kva_config */
    double min, max;            /* of numbers, bytes and durations (in ms) */
    const char *fallback;       /* default as text, NULL: not given */
    const char *const *choices; /* KVA_OPTION_CHOICE: NULL-terminated; the value is the index */
    const char *group;          /* heading in --help */
    const char *help;           /* one sentence or two */
};

/* The table; *ret_count entries, grouped. */
const struct kva_option *kva_options(size_t *ret_count);

/* Defaults. Fails: KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_config_init(struct kva_config *config, struct kva_err *err);
void kva_config_finish(struct kva_config *config);

struct kva_config_sources {
    enum kva_command command;
    int argc; /* arguments after the command's name */
    char **argv;
    kva_env_fn env;
};

/* Reads all sources into an initialised config. --config FILE (or KVAHEAD_CONFIG) names the
 * configuration file. Arguments that are no option are handed out in *ret_rest (borrowed; up to
 * KVA_LIST_MAX). Fails: KVA_EINVAL, KVA_ENOTFOUND, KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_config_load(struct kva_config *config,
                                               const struct kva_config_sources *sources,
                                               struct kva_string_list *ret_rest,
                                               struct kva_err *err);

/* Set one option from text; `origin` ("--port", "KVAHEAD_PORT", "kvahead.json: port") is named in
 * errors. */
KVA_MUST_CHECK enum kva_status kva_config_set(struct kva_config *config,
                                              const struct kva_option *option, const char *value,
                                              const char *origin, struct kva_err *err);

/* The environment variable of an option: "KVAHEAD_DEVICE_MEMORY" of "device-memory". */
void kva_option_variable(const char *option, char *name, size_t size);

/* The part of --help that lists a command's options, and the reference page in Markdown. */
void kva_options_help(enum kva_command command, struct kva_buf *out);
void kva_options_markdown(struct kva_buf *out);

#endif
