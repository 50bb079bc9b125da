/* table.c - every option: its name, default, range, commands and meaning. */
#include "config/options.h"

#include <math.h>

#define SERVE     (KVA_CMD_SERVE | KVA_CMD_DOCTOR)
#define ENGINE    (SERVE | KVA_CMD_GENERATE | KVA_CMD_INFO | KVA_CMD_BENCH)
#define BENCH     KVA_CMD_BENCH
#define MAKE      KVA_CMD_MAKE_MODEL
#define EVAL      KVA_CMD_EVAL
#define SKEW      KVA_CMD_SKEW
#define SAMPLING  (KVA_CMD_GENERATE | KVA_CMD_CHAT)
#define AT(field) offsetof(struct kva_config, field)
#define KIB       1024.0
#define GIB       (1024.0 * 1024.0 * 1024.0)
#define TIB       (1024.0 * GIB)
#define SECOND    1000.0
#define HOUR      (3600 * SECOND)

static const char *const levels[] = {"debug", "info", "warn", "error", "off", NULL};
static const char *const formats[] = {"auto", "text", "json", NULL};
/* Order of enum kva_dtype with F32 standing for "choose". */
static const char *const kv_dtypes[] = {"auto", "f16", "bf16", NULL};
/* Order of enum kva_model_weights. */
static const char *const weights[] = {"auto", "bf16", "int8", "int4", NULL};
static const char *const cpu_levels[] = {"auto",       "ref",        "avx2", "avx512",
                                         "avx512vnni", "avx512bf16", "amx",  NULL};

/* Behind auto the order of enum kva_reply_style. */
static const char *const tool_parsers[] = {"auto",    "none", "hermes", "llama3",
                                           "mistral", "json", "xml",    NULL};
static const char *const poolings[] = {"auto", "mean", "last", NULL};
static const char *const cluster_plans[] = {"gain", "waiting", NULL};
static const char *const reasoning_parsers[] = {"auto", "none", "think", NULL};

static const struct kva_option table[] = {
    {"model", KVA_OPTION_STRING, ENGINE | EVAL | SKEW | KVA_CMD_TOKENIZE, AT(model), 0, 0, NULL,
     NULL, "Model",
     "A Hugging Face checkpoint's folder (config.json, safetensors, tokenizer.json) or a GGUF file "
     "(of a split one the first part), by path; or a name, fetched once: smollm2-135m-instruct, or "
     "org/name[@revision][:file] of a hub "
     "(docs/models.md)."},
    {"offline", KVA_OPTION_BOOL, ENGINE | EVAL | SKEW | KVA_CMD_TOKENIZE | KVA_CMD_PULL,
     AT(offline), 0, 0, "false", NULL, "Model",
     "Use no network: the model is a path, or in a cache already."},
    {"model-name", KVA_OPTION_STRING, SERVE, AT(model_name), 0, 0, NULL, NULL, "Model",
     "Name that clients use; default: the model's name, or that of its folder or file."},
    {"chat-template", KVA_OPTION_STRING, SERVE, AT(chat_template), 0, 0, NULL, NULL, "Model",
     "A file with the chat template (Jinja), instead of the model's own."},
    {"context", KVA_OPTION_UINT, ENGINE | EVAL | SKEW, AT(context), 0, 16.0 * 1024 * 1024, "0",
     NULL, "Model",
     "Longest prompt and output together, in tokens; 0: what the model was made for."},
    {"weights", KVA_OPTION_CHOICE, ENGINE | EVAL | SKEW, AT(weights), 0, 0, "auto", weights,
     "Model",
     "Format of the model's matrices. auto: as in its files, a GGUF file's blocks of 2 to 8 bits "
     "as they are; bf16: such blocks decoded; int8, int4: made of what the files have, a half and a "
     "third of bf16's bytes (docs/models.md)."},
    {"weights-cache", KVA_OPTION_STRING, ENGINE | EVAL | SKEW, AT(weights_cache), 0, 0, NULL, NULL,
     "Model",
     "Folder for matrices in int8 or int4, which are made once (default: the model's own folder, or "
     "beside its file), and for blocks of GGUF files (default: in memory)."},
    {"skew", KVA_OPTION_STRING, ENGINE | EVAL, AT(skew), 0, 0, NULL, NULL, "Model",
     "File of the model's skew, which `kvahead skew` makes; default: kvahead.skew in the model's "
     "folder, or beside its file."},
    {"skew-planes", KVA_OPTION_UINT, ENGINE | EVAL, AT(skew_planes), 0, 100, "0", NULL, "Model",
     "Keep the query weights of so many percent of the columns a second time, for infinigen with "
     "skew=planes and as many `partial`, which then reads no others to rehearse a layer; 0: none."},

    {"device", KVA_OPTION_STRING, ENGINE | EVAL | SKEW, AT(device), 0, 0, "auto", NULL, "Device",
     "cpu, cuda:N, or auto: the first GPU that has room for the weights, else the CPU."},
    {"threads", KVA_OPTION_UINT, ENGINE | EVAL | SKEW | MAKE, AT(threads), 0, 1024, "0", NULL,
     "Device", "Compute threads; 0: one per usable core."},
    {"cpu-level", KVA_OPTION_CHOICE, ENGINE | EVAL | SKEW, AT(cpu_levels), 0, 0, "auto", cpu_levels,
     "Device", "Highest instruction set to use; auto: the best that the machine has."},
    {"gpu-memory", KVA_OPTION_BYTES, ENGINE | EVAL | SKEW, AT(gpu_memory), 0, 64 * TIB, "0", NULL,
     "Device",
     "All that is taken of a GPU's memory, weights and scratch included; 0: what is free there."},
    {"device-memory", KVA_OPTION_BYTES, ENGINE | EVAL | SKEW, AT(device_memory), 0, 64 * TIB, "0",
     NULL, "Device",
     "Budget of the device tier of the KV cache; 0: a quarter of free memory; on a GPU what "
     "weights and scratch leave."},
    {"host-memory", KVA_OPTION_BYTES, ENGINE | EVAL | SKEW, AT(host_memory), 0, 64 * TIB, "0", NULL,
     "Device", "Budget of the host tier of the KV cache; 0: a quarter of free memory."},
    {"prefault", KVA_OPTION_BOOL, SERVE, AT(prefault), 0, 0, "false", NULL, "Device",
     "CPU: take all memory of both tiers at start. Else it comes page by page as it is used, which "
     "requests wait for: for long in a virtual machine whose host has to find it first."},

    {"kv", KVA_OPTION_LIST, ENGINE | EVAL, AT(kv), 0, 0, NULL, NULL, "KV cache",
     "KV policy and its settings, NAME[:BITS[:TOPK]][:SETTING=VALUE...], as in kivi:1 or "
     "specache:bits=1:topk=128; paper=true starts from its paper's settings. Repeat to say the "
     "settings of further policies; the first one is of requests that name none. Default: full. "
     "Policies and settings: docs/kv.md."},
    {"kv-allow", KVA_OPTION_LIST, SERVE, AT(kv_allow), 0, 0, NULL, NULL, "KV cache",
     "Policy that requests may choose; repeat for several; default: all but those that drop tokens "
     "for good (streaming, h2o, q-hitter)."},
    {"kv-topk-max", KVA_OPTION_UINT, SERVE, AT(kv_topk_max), 0, 16384, "1024", NULL, "KV cache",
     "Rows per KV head and layer (topk) that a request may ask for."},
    {"kv-dtype", KVA_OPTION_CHOICE, ENGINE | EVAL | SKEW, AT(kv_dtype), 0, 0, "auto", kv_dtypes,
     "KV cache", "16-bit format of keys and values; auto: bf16 for bf16 models, else f16."},
    {"prefix-cache", KVA_OPTION_BOOL, ENGINE | EVAL, AT(prefix_cache), 0, 0, "true", NULL,
     "KV cache", "Keep finished prompts' KV for requests that begin alike."},
    {"prefix-share-keys", KVA_OPTION_BOOL, SERVE, AT(prefix_share_keys), 0, 0, "false", NULL,
     "KV cache",
     "Share prefixes between API keys too: faster, but response times then tell one client what "
     "another has asked."},

    {"sequences", KVA_OPTION_UINT, ENGINE & ~BENCH, AT(sequences), 1, 65536, "64", NULL,
     "Scheduling", "Sequences decoded at the same time."},
    {"step-tokens", KVA_OPTION_UINT, ENGINE | EVAL | SKEW, AT(step_tokens), 0, 65536, "0", NULL,
     "Scheduling",
     "Tokens of a step, decoded and prefilled together; at least as many as sequences. 0: 256 on a "
     "CPU, 2048 on a GPU with room for them, twice as many as sequences at least."},
    {"waiting", KVA_OPTION_UINT, SERVE, AT(waiting), 1, 1000000, "2048", NULL, "Scheduling",
     "Choices that may wait for admission; more are refused with 503 and Retry-After. Keys share "
     "them: alone, one may fill half."},
    {"waiting-time", KVA_OPTION_DURATION, SERVE, AT(waiting_time_ms), 0, HOUR, "30s", NULL,
     "Scheduling",
     "Time that a request may wait for admission; then it is refused with 503 and Retry-After, "
     "so that under too much load those that are served are served in time. 0: no limit."},
    {"prefill-share", KVA_OPTION_UINT, SERVE | BENCH, AT(prefill_share), 1, 100, "50", NULL,
     "Scheduling", "Percent of a step that prompts may take while others stream."},
    {"step-time", KVA_OPTION_DURATION, SERVE, AT(step_time_ms), 0, HOUR, "100ms", NULL,
     "Scheduling",
     "Time that a step should take at most while others stream: prompts get what is left of it; 0: "
     "no such aim."},
    {"aging", KVA_OPTION_DURATION, SERVE, AT(aging_ms), 1, HOUR, "5s", NULL, "Scheduling",
     "Waiting time that raises a request by one priority level."},

    {"host", KVA_OPTION_STRING, SERVE, AT(host), 0, 0, "127.0.0.1", NULL, "Server",
     "Address to listen on; 0.0.0.0 or :: for all, which wants an API key."},
    {"port", KVA_OPTION_UINT, SERVE, AT(port), 0, 65535, "8000", NULL, "Server",
     "TCP port; 0: any free one, printed at start."},
    {"admin-listen", KVA_OPTION_STRING, SERVE, AT(admin_listen), 0, 0, NULL, NULL, "Server",
     "HOST:PORT of a second listener for probes and Prometheus: /health, /ready, /metrics and "
     "/version, without a key, without TLS, whatever the load; default: none."},
    {"allowed-host", KVA_OPTION_LIST, SERVE, AT(allowed_hosts), 0, 0, NULL, NULL, "Server",
     "Host name that a server without keys on a loopback address answers to besides localhost; "
     "repeat for several; * for all. A web page could otherwise reach it under a name of its own."},
    {"api-key", KVA_OPTION_SECRETS, SERVE, AT(api_keys), 0, 0, NULL, NULL, "Server",
     "Key that clients must present, several with commas between. No flag: everybody on the "
     "machine "
     "could read it."},
    {"api-key-file", KVA_OPTION_STRING, SERVE, AT(api_key_file), 0, 0, NULL, NULL, "Server",
     "File of keys, one a line, each with what it may use (docs/api.md). Read again on SIGHUP."},
    {"public-without-key", KVA_OPTION_BOOL, SERVE, AT(public_without_key), 0, 0, "false", NULL,
     "Server",
     "Listen on an address that other machines reach although no API key is set: everybody there "
     "may use the model."},
    {"key-rate", KVA_OPTION_UINT, SERVE, AT(key_rate), 0, 1e6, "0", NULL, "Server",
     "Requests per minute that one key may make, where its line does not say; 0: no limit."},
    {"key-tokens", KVA_OPTION_UINT, SERVE, AT(key_tokens), 0, 2e9, "0", NULL, "Server",
     "Tokens per minute, of prompts and answers, that one key may use, where its line does not "
     "say; 0: no limit."},
    {"key-running", KVA_OPTION_UINT, SERVE, AT(key_running), 0, 1e6, "0", NULL, "Server",
     "Choices of one key that may run at once, where its line does not say; more wait; 0: no "
     "limit."},
    {"key-waiting", KVA_OPTION_UINT, SERVE, AT(key_waiting), 0, 1e6, "0", NULL, "Server",
     "Choices of one key that may wait at once, where its line does not say; more are refused with "
     "429; 0: its share of the queue."},
    {"tls-cert", KVA_OPTION_STRING, SERVE, AT(tls_cert), 0, 0, NULL, NULL, "Server",
     "Certificate chain (PEM); with --tls-key: serve HTTPS. Read again on SIGHUP."},
    {"tls-key", KVA_OPTION_STRING, SERVE, AT(tls_key), 0, 0, NULL, NULL, "Server",
     "Private key (PEM)."},
    {"cors-origin", KVA_OPTION_LIST, SERVE, AT(cors_origins), 0, 0, NULL, NULL, "Server",
     "Origin whose web pages may call; repeat for several; '*' for any; default: none."},
    {"connections", KVA_OPTION_UINT, SERVE, AT(connections), 1, 1000000, "8192", NULL, "Server",
     "Connections held open at the same time; fewer where the system allows fewer descriptors."},
    {"idle-per-address", KVA_OPTION_UINT, SERVE, AT(idle_per_address), 1, 1000000, "2048", NULL,
     "Server",
     "Connections of one address (IPv6: of one /64) that may wait for a request; of more the "
     "oldest "
     "is closed."},
    {"request-limit", KVA_OPTION_LIST, SERVE, AT(request_limits), 0, 0, NULL, NULL, "Server",
     "NAME=NUMBER: how much one request may ask for, as docs/api.md has it; repeat for several."},
    {"body-limit", KVA_OPTION_BYTES, SERVE, AT(body_bytes), KIB, GIB, "16M", NULL, "Server",
     "Largest request body."},
    {"bodies-limit", KVA_OPTION_BYTES, SERVE, AT(bodies_bytes), KIB, TIB, "1G", NULL, "Server",
     "Request bodies that are held at the same time while they arrive and are tokenised, in sum; "
     "more are refused with 503 before they are read."},
    {"bodies-per-key", KVA_OPTION_BYTES, SERVE, AT(bodies_per_key), KIB, TIB, "256M", NULL,
     "Server",
     "The same of one API key, or without keys of one address; more are refused with 429."},
    {"header-limit", KVA_OPTION_BYTES, SERVE, AT(header_bytes), KIB, KIB *KIB, "32K", NULL,
     "Server", "Largest request header block."},
    {"keepalive", KVA_OPTION_DURATION, SERVE, AT(keepalive_ms), 0, HOUR, "10s", NULL, "Server",
     "Silence after which a stream gets a comment, so that proxies do not cut it; 0: never."},
    {"head-timeout", KVA_OPTION_DURATION, SERVE, AT(head_timeout_ms), 100, HOUR, "10s", NULL,
     "Server", "Longest time for a TLS handshake and for the headers of a request to arrive."},
    {"read-timeout", KVA_OPTION_DURATION, SERVE, AT(read_timeout_ms), 100, HOUR, "60s", NULL,
     "Server", "Longest time for a whole request to arrive."},
    {"write-stall", KVA_OPTION_DURATION, SERVE, AT(write_stall_ms), 100, HOUR, "60s", NULL,
     "Server", "Longest time that a client may leave a full stream unread before it is cut."},
    {"request-timeout", KVA_OPTION_DURATION, SERVE, AT(request_timeout_ms), 0, 24 * HOUR, "0", NULL,
     "Server", "Longest time for a whole request; 0: no limit."},
    {"drain-timeout", KVA_OPTION_DURATION, SERVE, AT(drain_timeout_ms), 0, HOUR, "30s", NULL,
     "Server", "Time that running requests get to finish after SIGTERM."},
    {"workers", KVA_OPTION_UINT, SERVE, AT(workers), 1, 256, "2", NULL, "Server",
     "Threads for tokenising and templates of long inputs."},
    {"grammar-limit", KVA_OPTION_BYTES, SERVE, AT(grammar_text_bytes), KIB, KIB *KIB, "256K", NULL,
     "Server", "Longest JSON Schema, regular expression or grammar of a request."},
    {"grammar-time", KVA_OPTION_DURATION, SERVE, AT(grammar_time_ms), 10, HOUR, "10s", NULL,
     "Server", "Longest time for making a grammar, which happens once for all that ask for it."},
    {"grammar-memory", KVA_OPTION_BYTES, SERVE, AT(grammar_bytes), KIB *KIB, TIB, "512M", NULL,
     "Server", "Memory that making a grammar may take."},
    {"grammar-cache", KVA_OPTION_BYTES, SERVE, AT(grammar_cache_bytes), 0, TIB, "256M", NULL,
     "Server", "Memory of grammars that are kept for requests that ask for the same."},
    {"tool-parser", KVA_OPTION_CHOICE, SERVE, AT(tool_parser), 0, 0, "auto", tool_parsers, "Server",
     "How the model writes calls of functions; auto: as its chat template shows (docs/api.md)."},
    {"reasoning-parser", KVA_OPTION_CHOICE, SERVE, AT(reasoning_parser), 0, 0, "auto",
     reasoning_parsers, "Server",
     "What comes as reasoning_content; think: what is between <think> and </think>; auto: that, "
     "where the chat template has it."},
    {"pooling", KVA_OPTION_CHOICE, SERVE, AT(pooling), 0, 0, "auto", poolings, "Server",
     "What /v1/embeddings makes one vector of, where a request does not say: the mean of all tokens, "
     "or the last one; auto: as the model's files say, else the mean (docs/api.md)."},
    {"responses-memory", KVA_OPTION_BYTES, SERVE, AT(responses_bytes), 0, TIB, "64M", NULL,
     "Server",
     "Memory of responses (/v1/responses) that may be asked for again or continued; of too many the "
     "oldest go. 0: none is kept."},
    {"metrics-vllm", KVA_OPTION_BOOL, SERVE, AT(metrics_vllm), 0, 0, "false", NULL, "Server",
     "Expose the common metrics under vllm: names too."},
    {"metrics-keys", KVA_OPTION_BOOL, SERVE, AT(metrics_keys), 0, 0, "false", NULL, "Server",
     "Expose what each key has used, by the name that the key file gives it: the first hundred "
     "names, the others together."},
    {"live-view", KVA_OPTION_BOOL, SERVE, AT(live_view), 0, 0, "true", NULL, "Server",
     "Answer /v1/kvahead/requests, where a key sees its own requests."},
    {"page", KVA_OPTION_BOOL, SERVE, AT(page), 0, 0, "true", NULL, "Server",
     "Answer browsers at / with a page for chats and the server's load."},

    {"agent-listen", KVA_OPTION_STRING, SERVE, AT(agent_listen), 0, 0, NULL, NULL, "Server",
     "HOST:PORT for HAProxy's agent-check: one line with the share of the device tier that is free, "
     "as a weight, or drain; default: none."},

    {"cluster-listen", KVA_OPTION_STRING, SERVE, AT(cluster_listen), 0, 0, NULL, NULL, "Cluster",
     "ADDRESS:PORT at which other instances reach this one; port 0: any. Makes it a member of a "
     "cluster (docs/cluster.md); what attends for others listens at the same address, at any port. "
     "Default: no cluster."},
    {"cluster-name", KVA_OPTION_STRING, SERVE, AT(cluster_name), 0, 0, "kvahead", NULL, "Cluster",
     "Name of the cluster: instances of the same name and model lend to each other."},
    {"cluster-etcd", KVA_OPTION_LIST, SERVE, AT(cluster_etcd), 0, 0, NULL, NULL, "Cluster",
     "URL of an etcd that knows the members, http://HOST:2379; repeat for several of one etcd."},
    {"cluster-etcd-user", KVA_OPTION_SECRET, SERVE, AT(cluster_etcd_user), 0, 0, NULL, NULL,
     "Cluster", "NAME:PASSWORD for etcd. No flag: everybody on the machine could read it."},
    {"cluster-etcd-ca", KVA_OPTION_STRING, SERVE, AT(cluster_etcd_ca), 0, 0, NULL, NULL, "Cluster",
     "Certificates (PEM) to trust of etcd instead of the system's."},
    {"cluster-secret-file", KVA_OPTION_STRING, SERVE, AT(cluster_secret_file), 0, 0, NULL, NULL,
     "Cluster",
     "File with what all instances know and nobody else: one line of at least 16 bytes, as from "
     "openssl rand -hex 32."},
    {"cluster-advertise", KVA_OPTION_STRING, SERVE, AT(cluster_advertise), 0, 0, NULL, NULL,
     "Cluster", "Host by which others reach this one; default: the address of --cluster-listen."},
    {"cluster-nodes", KVA_OPTION_UINT, SERVE, AT(cluster_nodes), 2, 1023, "64", NULL, "Cluster",
     "Instances at most."},
    {"cluster-lend", KVA_OPTION_UINT, SERVE, AT(cluster_lend), 0, 100, "80", NULL, "Cluster",
     "Percent of the device tier that others may have here, as far as it is free; 0: nothing."},
    {"cluster-copy", KVA_OPTION_UINT, SERVE, AT(cluster_copy), 1, 100, "1", NULL, "Cluster",
     "Percent that a step of one row may take longer while pages are copied to and from others: how "
     "fast they are lent while requests run."},
    {"cluster-keep-home", KVA_OPTION_BOOL, SERVE, AT(cluster_keep_home), 0, 0, "true", NULL,
     "Cluster",
     "Keep the host's copies of what others hold: an instance that is lost then costs a step. "
     "Without, their memory is free too, and the request is computed again."},
    {"cluster-threads", KVA_OPTION_UINT, SERVE, AT(cluster_threads), 0, 1024, "0", NULL, "Cluster",
     "Compute threads that attend to what others have here, on a CPU; 0: as many as --threads."},
    {"cluster-answer", KVA_OPTION_DURATION, SERVE, AT(cluster_answer_ms), 10, HOUR, "2s", NULL,
     "Cluster",
     "Time that another instance has to attend for this one in a layer; then what it holds is lost."},
    {"cluster-lease", KVA_OPTION_DURATION, SERVE, AT(cluster_lease_ms), 2000, HOUR, "10s", NULL,
     "Cluster", "Time after which an instance that etcd does not hear of is gone."},
    {"cluster-loan", KVA_OPTION_DURATION, SERVE, AT(cluster_loan_ms), 1000, HOUR, "10s", NULL,
     "Cluster", "Time after which memory is free again whose borrower is not heard of."},
    {"cluster-recall", KVA_OPTION_DURATION, SERVE, AT(cluster_recall_ms), 10, HOUR, "5s", NULL,
     "Cluster", "Time that borrowers have to take back what this instance needs itself."},
    {"cluster-patience", KVA_OPTION_DURATION, SERVE, AT(cluster_patience_ms), 0, HOUR, "10s", NULL,
     "Cluster",
     "Time that a request waits as this instance's first, for lack of memory, before memory is kept "
     "for it and recalled from others; until then what it cannot use yet is lent. One that is longer "
     "than this instance is then lent all of it that may go."},
    {"cluster-plan", KVA_OPTION_CHOICE, SERVE, AT(cluster_plan), 0, 0, "gain", cluster_plans,
     "Cluster",
     "When the instance that leads has memory lent. gain: when requests wait for it and all together "
     "produce more tokens a second, by what was measured at the start. waiting: whenever they wait."},
    {"cluster-round", KVA_OPTION_DURATION, SERVE, AT(cluster_round_ms), 50, HOUR, "1s", NULL,
     "Cluster", "Time between two plans of the instance that leads."},
    {"cluster-wait", KVA_OPTION_DURATION, SERVE, AT(cluster_wait_ms), 0, 24 * HOUR, "5m", NULL,
     "Cluster",
     "Time that a request which is longer than this instance may wait until others lend what it "
     "lacks; 0: no limit."},

    {"log-level", KVA_OPTION_CHOICE, ENGINE | EVAL | SKEW | KVA_CMD_PULL, AT(log_level), 0, 0,
     "info", levels, "Log", "Least important lines to write."},
    {"log-format", KVA_OPTION_CHOICE, ENGINE | EVAL | SKEW | KVA_CMD_PULL, AT(log_format), 0, 0,
     "auto", formats, "Log", "auto: text on a terminal, JSON otherwise."},

    {"url", KVA_OPTION_STRING, KVA_CMD_CHAT, AT(url), 0, 0, "http://127.0.0.1:8000/v1", NULL,
     "Chat", "Base URL of the server; any OpenAI-compatible one."},
    {"api-key", KVA_OPTION_SECRETS, KVA_CMD_CHAT, AT(api_keys), 0, 0, NULL, NULL, "Chat",
     "Key to present. No flag: everybody on the machine could read it."},
    {"model-name", KVA_OPTION_STRING, KVA_CMD_CHAT, AT(model_name), 0, 0, NULL, NULL, "Chat",
     "Model to ask; default: the first that the server lists."},
    {"system", KVA_OPTION_STRING, KVA_CMD_CHAT, AT(system), 0, 0, NULL, NULL, "Chat",
     "System message."},
    {"tls-ca", KVA_OPTION_STRING, KVA_CMD_CHAT, AT(tls_ca), 0, 0, NULL, NULL, "Chat",
     "Certificates (PEM) to trust instead of the system's."},
    {"color", KVA_OPTION_BOOL, KVA_CMD_CHAT, AT(color), 0, 0, "true", NULL, "Chat",
     "Colours, on a terminal; a NO_COLOR in the environment makes the default false."},

    {"prompt", KVA_OPTION_STRING, KVA_CMD_GENERATE, AT(prompt), 0, 0, NULL, NULL, "Generation",
     "Text to continue; default: standard input."},
    {"max-tokens", KVA_OPTION_UINT, SAMPLING, AT(max_tokens), 1, 1e9, "512", NULL, "Generation",
     "Longest output, in tokens."},
    {"temperature", KVA_OPTION_NUMBER, SAMPLING, AT(temperature), 0, 2, "0", NULL, "Generation",
     "0: the most probable token each time; higher: more varied."},
    {"top-p", KVA_OPTION_NUMBER, SAMPLING, AT(top_p), 1e-9, 1, "1", NULL, "Generation",
     "Sample among the most probable tokens that together have this probability."},
    {"seed", KVA_OPTION_INT, SAMPLING, AT(seed), -1, 9007199254740991.0, "-1", NULL, "Generation",
     "Same seed, same output; -1: a random one."},

    {"ids", KVA_OPTION_BOOL, KVA_CMD_TOKENIZE, AT(ids), 0, 0, "false", NULL, "Tokenize",
     "Print token ids only, in one line."},
    {"raw", KVA_OPTION_BOOL, KVA_CMD_TOKENIZE | KVA_CMD_GENERATE | EVAL, AT(raw), 0, 0, "false",
     NULL, "Tokenize", "Do not put a beginning-of-text token first."},

    {"prefill", KVA_OPTION_STRING, BENCH, AT(bench_prefill), 0, 0, "512,2048", NULL, "Bench",
     "Prompt lengths to measure, with commas between; 0: none."},
    {"batch", KVA_OPTION_STRING, BENCH, AT(bench_batch), 0, 0, "1,4,8,16,32", NULL, "Bench",
     "Numbers of sequences that decode together, with commas between; 0: none."},
    {"depth", KVA_OPTION_STRING, BENCH, AT(bench_depth), 0, 0, "0,4096,8192,16384,32768", NULL,
     "Bench", "Tokens that the decoding sequences have before, with commas between."},
    {"mixed", KVA_OPTION_BOOL, BENCH, AT(bench_mixed), 0, 0, "true", NULL, "Bench",
     "Measure decoding beside a prompt's prefill, too."},
    {"repetitions", KVA_OPTION_UINT, BENCH, AT(bench_repetitions), 1, 1000, "11", NULL, "Bench",
     "Times that a row of a table is measured; its figure is the median."},
    {"row-time", KVA_OPTION_DURATION, BENCH, AT(bench_row_time_ms), 0, HOUR, "20s", NULL, "Bench",
     "Time after which a row gets no further repetition."},
    {"compare", KVA_OPTION_LIST, BENCH, AT(bench_compare), 0, 0, NULL, NULL, "Bench",
     "KV policy to measure beside --kv's first, written like it; repeat for several."},
    {"profile", KVA_OPTION_BOOL, BENCH, AT(bench_profile), 0, 0, "false", NULL, "Bench",
     "Show each row's time by kind of operator."},
    {"cpu-time", KVA_OPTION_BOOL, BENCH, AT(bench_cpu_time), 0, 0, "false", NULL, "Bench",
     "Measure processor time, of compute and copies together, for machines with other work; with "
     "--threads 1 only."},

    {"text", KVA_OPTION_STRING, EVAL, AT(eval_text), 0, 0, NULL, NULL, "Eval",
     "File of text to compare the policies on, in windows."},
    {"prompts", KVA_OPTION_STRING, EVAL, AT(eval_prompts), 0, 0, NULL, NULL, "Eval",
     "File of prompts instead: a JSON object a line with 'prompt' and, if the tokens behind it are "
     "given, 'completion'; each a string or a list of token ids."},
    {"stream", KVA_OPTION_STRING, EVAL, AT(eval_stream), 0, 0, NULL, NULL, "Eval",
     "File of text instead: it goes through each policy token by token, past the model's context "
     "where the policy can (streaming), in --windows windows of --tokens tokens. Perplexity, time "
     "and memory of each. A policy's percents are of all these tokens."},
    {"policies", KVA_OPTION_STRING, EVAL, AT(eval_policies), 0, 0, "kivi:2,specache:2,specache:1",
     NULL, "Eval", "KV policies with commas between, each written like --kv's."},
    {"tokens", KVA_OPTION_UINT, EVAL, AT(eval_tokens), 1, 1e6, "64", NULL, "Eval",
     "Decode steps behind a window, or behind a prompt without completion, where full KV's own "
     "choice is followed up to an end token."},
    {"from", KVA_OPTION_UINT, EVAL, AT(eval_from), 0, 16.0 * 1024 * 1024, "0", NULL, "Eval",
     "Tokens of a window of the text, prefilled exactly; 0: half of the context."},
    {"windows", KVA_OPTION_UINT, EVAL, AT(eval_windows), 1, 65536, "1", NULL, "Eval",
     "Windows of the text, one behind the other."},
    {"look", KVA_OPTION_UINT, EVAL, AT(eval_look), 0, 1e6, "1", NULL, "Eval",
     "Steps from one look at attention by layer and head to the next; 0: none."},
    {"sparsity", KVA_OPTION_STRING, EVAL, AT(eval_sparsity), 0, 0, NULL, NULL, "Eval",
     "With --stream and the policy full: percents of its tokens, with commas between, as in "
     "0.5,1,5. How much of exact attention so many tokens have, the best for each query, and those "
     "that greedy eviction has kept."},

    {"text", KVA_OPTION_STRING, SKEW, AT(skew_text), 0, 0, NULL, NULL, "Skew",
     "File of text like that which the model is to read."},
    {"tokens", KVA_OPTION_UINT, SKEW, AT(skew_tokens), 256, 1e8, "16384", NULL, "Skew",
     "Tokens of the text to find directions from, in windows from all parts of it; a quarter more is "
     "read to see what they find."},
    {"window", KVA_OPTION_UINT, SKEW, AT(skew_window), 0, 16.0 * 1024 * 1024, "0", NULL, "Skew",
     "Tokens of a window; 0: the model's context, up to 16384. Positions that no window reaches have "
     "no say in the skew."},
    {"out", KVA_OPTION_STRING, SKEW, AT(skew_out), 0, 0, NULL, NULL, "Skew",
     "File of the skew; default: kvahead.skew in the model's folder, or beside its file, where it is "
     "found without --skew."},
    {"fold", KVA_OPTION_STRING, SKEW, AT(skew_fold), 0, 0, NULL, NULL, "Skew",
     "Folder for a copy of the checkpoint with the directions in its matrices, for models without "
     "rotary positions (OPT); no file is then written but where --out says."},
    {"report", KVA_OPTION_BOOL, SKEW, AT(skew_report), 0, 0, "false", NULL, "Skew",
     "Show by layer how alike the inputs of consecutive layers are, how much the first columns have, "
     "and how many of the tokens that queries want they find."},

    {"json", KVA_OPTION_STRING, BENCH | EVAL | SKEW | KVA_CMD_DOCTOR, AT(json), 0, 0, NULL, NULL,
     "Result",
     "File for the whole result, of which tables show a part, as one JSON document; -: standard "
     "output, instead of the tables."},
    {"svg", KVA_OPTION_STRING, EVAL, AT(eval_svg), 0, 0, NULL, NULL, "Result",
     "File for heat maps by layer and head; -: standard output, instead of the tables."},

    {"shape", KVA_OPTION_STRING, MAKE, AT(shape), 0, 0, NULL, NULL, "Make-model",
     "Name of a published model's shape, such as llama3-8b, or the path of a config.json."},
    {"seed", KVA_OPTION_UINT, MAKE, AT(model_seed), 0, 9007199254740991.0, "0", NULL, "Make-model",
     "Same seed, same weights."},
    {"layers", KVA_OPTION_UINT, MAKE, AT(layers), 0, 512, "0", NULL, "Make-model",
     "Number of layers; 0: the shape's."},
    {"context", KVA_OPTION_UINT, MAKE, AT(context), 0, 16.0 * 1024 * 1024, "0", NULL, "Make-model",
     "Longest prompt and output together, in tokens; 0: the shape's, and at least 65536 where "
     "positions are rotary."},
    {"shard-size", KVA_OPTION_BYTES, MAKE, AT(shard_bytes), 1, TIB, "4G", NULL, "Make-model",
     "Largest safetensors file."},
};

const struct kva_option *kva_options(size_t *ret_count)
{
    *ret_count = KVA_COUNT_OF(table);
    return table;
}
