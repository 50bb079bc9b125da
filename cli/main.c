/* main.c - the kvahead binary: which command, with which options. */
#include "base/log.h"
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name;
    enum kva_command command;
    kva_cli_fn run;
    const char *usage;
    const char *help;
} commands[] = {
    {"serve", KVA_CMD_SERVE, kva_cli_serve, "serve --model MODEL [options]",
     "Serve a model over the OpenAI API."},
    {"chat", KVA_CMD_CHAT, kva_cli_chat, "chat [options]", "Talk to a server in the terminal."},
    {"generate", KVA_CMD_GENERATE, kva_cli_generate, "generate --model MODEL [options] [TEXT ...]",
     "Continue a text, without a server."},
    {"tokenize", KVA_CMD_TOKENIZE, kva_cli_tokenize, "tokenize --model MODEL [options] [TEXT ...]",
     "Show a text's tokens."},
    {"info", KVA_CMD_INFO, kva_cli_info, "info --model MODEL [options]",
     "Describe a model and what memory its serving takes."},
    {"bench", KVA_CMD_BENCH, kva_cli_bench, "bench MODEL [options]",
     "Measure a model's speed here, beside the machine's limits."},
    {"eval", KVA_CMD_EVAL, kva_cli_eval, "eval --model MODEL --text FILE [options]",
     "Measure what KV policies cost on your own text."},
    {"skew", KVA_CMD_SKEW, kva_cli_skew, "skew --model MODEL --text FILE [options]",
     "Find the directions in which a model's queries and keys meet."},
    {"pull", KVA_CMD_PULL, kva_cli_pull, "pull MODEL [options]",
     "Fetch a model, or what is new of it, and print its path."},
    {"list", KVA_CMD_LIST, kva_cli_list, "list", "Show the models that have been fetched."},
    {"doctor", KVA_CMD_DOCTOR, kva_cli_doctor, "doctor [--model MODEL] [options of serve]",
     "Say what this machine offers, what would fit and what is wrong."},
    {"make-model", KVA_CMD_MAKE_MODEL, kva_cli_make_model, "make-model --shape NAME [options] DIR",
     "Write a model with random weights, for measurements."},
};

static const char *get_env(const char *name)
{
    return getenv(name);
}

static void print_overview(FILE *to)
{
    fputs("kvahead " KVA_VERSION ": LLM serving for contexts and batches that do not fit in GPU "
          "memory\n\n",
          to);
    for (size_t i = 0; i < KVA_COUNT_OF(commands); i++)
        fprintf(to, "  kvahead %-44s %s\n", commands[i].usage, commands[i].help);
    fputs("\n  kvahead COMMAND --help                               The command's options.\n"
          "  kvahead options [--json]                             All options, as Markdown.\n"
          "  kvahead --version\n",
          to);
}

static void print_buf(struct kva_buf *text)
{
    fputs(text->data ? text->data : "", stdout);
    kva_buf_finish(text);
}

static int print_help(size_t index)
{
    struct kva_buf text;
    kva_buf_init(&text, 1 << 20);
    kva_buf_printf(&text, "kvahead %s\n\n%s\n", commands[index].usage, commands[index].help);
    kva_options_help(commands[index].command, &text);
    print_buf(&text);
    return KVA_EXIT_OK;
}

static int run_command(size_t index, int argc, char **argv)
{
    struct kva_config config;
    struct kva_string_list rest;
    struct kva_err err;
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return print_help(index);
    }
    const struct kva_config_sources sources = {commands[index].command, argc, argv, get_env};
    enum kva_status status = kva_config_init(&config, &err);
    const char *no_color = getenv("NO_COLOR");
    config.color = config.color && !(no_color && *no_color);
    if (!status)
        status = kva_config_load(&config, &sources, &rest, &err);
    if (!status)
        status = kva_cli_check(&config, &err);
    int code = KVA_EXIT_USAGE;
    if (status) {
        kva_cli_fail(&err);
    } else {
        kva_log_setup(STDERR_FILENO, (enum kva_log_level)config.log_level,
                      (enum kva_log_format)config.log_format);
        code = commands[index].run(&config, &rest);
    }
    kva_config_finish(&config);
    return code;
}

/* Its place in the table; -1: there is none. */
static int find_command(const char *name)
{
    for (size_t i = 0; i < KVA_COUNT_OF(commands); i++) {
        if (strcmp(commands[i].name, name) == 0)
            return (int)i;
    }
    return -1;
}

static int unknown_command(const char *name)
{
    fprintf(stderr, "kvahead: unknown command '%s'\n\n", name);
    print_overview(stderr);
    return KVA_EXIT_USAGE;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "--help";
    const bool help = strcmp(name, "help") == 0;
    int command = find_command(help && argc > 2 ? argv[2] : name);
    if (strcmp(name, "--version") == 0) {
        puts("kvahead " KVA_VERSION);
        return KVA_EXIT_OK;
    }
    if (help && argc > 2)
        return command < 0 ? unknown_command(argv[2]) : print_help((size_t)command);
    if (help || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        print_overview(argc > 1 ? stdout : stderr);
        return argc > 1 ? KVA_EXIT_OK : KVA_EXIT_USAGE;
    }
    if (strcmp(name, "options") == 0)
        return kva_cli_options(argc - 2, argv + 2);
    return command < 0 ? unknown_command(name) : run_command((size_t)command, argc - 2, argv + 2);
}
