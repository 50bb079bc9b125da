/* cli.h - the commands of the kvahead binary.
 *
 * main.c reads the options and hands each command the one config; a command opens what it needs
 * (instance.h), runs, and returns the process's exit code: 0 success, 1 failure, 2 wrong usage.
 *
 * Thread rule: main thread. */
#ifndef KVA_CLI_H
#define KVA_CLI_H

#include "base/buf.h"
#include "config/options.h"

enum kva_exit {
    KVA_EXIT_OK = 0,
    KVA_EXIT_FAILURE = 1,
    KVA_EXIT_USAGE = 2,
};

/* A command's arguments that are no options. */
typedef int (*kva_cli_fn)(const struct kva_config *config, const struct kva_string_list *rest);

int kva_cli_serve(const struct kva_config *config, const struct kva_string_list *rest);
int kva_cli_generate(const struct kva_config *config, const struct kva_string_list *rest);
int kva_cli_chat(const struct kva_config *config, const struct kva_string_list *rest);
int kva_cli_tokenize(const struct kva_config *config, const struct kva_string_list *rest);
int kva_cli_info(const struct kva_config *config, const struct kva_string_list *rest);
int kva_cli_bench(const struct kva_config *config, const struct kva_string_list *rest);
int kva_cli_eval(const struct kva_config *config, const struct kva_string_list *rest);
int kva_cli_pull(const struct kva_config *config, const struct kva_string_list *rest);
int kva_cli_list(const struct kva_config *config, const struct kva_string_list *rest);
int kva_cli_doctor(const struct kva_config *config, const struct kva_string_list *rest);
int kva_cli_skew(const struct kva_config *config, const struct kva_string_list *rest);
int kva_cli_make_model(const struct kva_config *config, const struct kva_string_list *rest);

/* What the table of options cannot check. Fails: KVA_EINVAL. */
KVA_MUST_CHECK enum kva_status kva_cli_check(const struct kva_config *config, struct kva_err *err);

/* `kvahead options`: what the tables of options and KV settings say. No config is read. */
int kva_cli_options(int argc, char **argv);

/* "kvahead: message" on standard error; returns KVA_EXIT_FAILURE. */
int kva_cli_fail(const struct kva_err *err);

/* For those who name a model as other servers have it: `serve MODEL`. */
#define KVA_CLI_BY_MODEL "a model is given by --model MODEL"

/* Says on standard error that a command takes no arguments, and what `instead`; returns
 * KVA_EXIT_USAGE. */
int kva_cli_unexpected(const char *command, const struct kva_string_list *rest,
                       const char *instead);

/* Addresses that other machines reach want an API key, or the operator's word (reach.c). Fails:
 * KVA_EINVAL. */
KVA_MUST_CHECK enum kva_status kva_cli_check_reach(const struct kva_config *config,
                                                   struct kva_err *err);

/* Origins and host names that no request can have are refused: they would be waited for in vain
 * (reach.c). Fails: KVA_EINVAL. */
KVA_MUST_CHECK enum kva_status kva_cli_check_callers(const struct kva_config *config,
                                                     struct kva_err *err);

/* The arguments joined by spaces, or else standard input up to a limit; the caller frees. NULL,
 * with a message printed: none, or too long. */
char *kva_cli_text(const struct kva_string_list *rest, size_t *ret_length);

/* --- files of text (text_file.c) --------------------------------------------------------------- */

/* Appends the file's text, which is UTF-8 without NUL and not empty, and writes its SHA-256 in hex.
 * Fails: KVA_ENOTFOUND, KVA_EIO, KVA_ETOOBIG, KVA_EINVAL (empty), KVA_EFORMAT (no text). */
KVA_MUST_CHECK enum kva_status kva_cli_read_text(const char *path, struct kva_buf *text,
                                                 char ret_sha256[65], struct kva_err *err);

struct kva_tokenizer;
struct kva_token_list;

/* Appends what a text of this model begins with: a BOS token, or nothing. Fails: KVA_EUNSUPPORTED
 * (the tokenizer is NULL), KVA_ETOOBIG, KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_cli_push_bos(const struct kva_tokenizer *tokenizer,
                                                struct kva_token_list *list, struct kva_err *err);

/* --- output (output.c) ----------------------------------------------------------------------- */

/* The path that stands for standard output. */
#define KVA_CLI_STDOUT "-"

/* The largest result. */
#define KVA_CLI_OUTPUT_BYTES ((size_t)64 << 20)

/* Whether a document goes to standard output, which then has nothing else. NULL: none is wanted. */
bool kva_cli_is_stdout(const char *path);

/* Whether a path can be written: to be asked before the work, not after it. NULL: nothing is to be
 * written. Fails: KVA_EIO. */
KVA_MUST_CHECK enum kva_status kva_cli_check_writable(const char *path, struct kva_err *err);

/* All of the text, and what went to standard output before it. Fails: KVA_EIO, also where the text
 * itself has failed. */
KVA_MUST_CHECK enum kva_status kva_cli_write(const char *path, const struct kva_buf *text,
                                             struct kva_err *err);

#endif
