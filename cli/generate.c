/* generate.c - continue one text, in this process, through the same scheduler and engine as the
 * server's. */
#include "base/clock.h"
#include "cli/cli.h"
#include "cli/instance.h"
#include "scheduler/scheduler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct printer {
    struct kva_detok detok;
    struct kva_buf text;
    struct kva_output end;
    bool ended;
};

static void print_ready(struct printer *printer)
{
    if (printer->text.length > 0)
        fwrite(printer->text.data, 1, printer->text.length, stdout);
    fflush(stdout);
    kva_buf_clear(&printer->text);
}

static void on_output(void *opaque, const struct kva_output *output)
{
    struct printer *printer = opaque;
    if (output->kind == KVA_OUTPUT_TOKEN) {
        kva_detok_push(&printer->detok, (int32_t)output->token.token, &printer->text);
        print_ready(printer);
    } else if (output->kind == KVA_OUTPUT_END) {
        kva_detok_flush(&printer->detok, &printer->text);
        print_ready(printer);
        printer->end = *output;
        printer->ended = true;
    }
}

static void set_sampling(struct kva_sampling_params *sampling, const struct kva_config *config,
                         const struct kva_model *model)
{
    *sampling = (struct kva_sampling_params){
        .temperature = (float)config->temperature,
        .top_p = (float)config->top_p,
        .repetition_penalty = 1,
        .seed = config->seed >= 0 ? (uint64_t)config->seed : kva_time_ns(),
        .stop_ids = model->config.eos_ids,
        .stop_id_count = model->config.eos_count,
        .logprobs = -1,
        .prompt_logprobs = -1,
    };
}

static enum kva_status make_request(const struct kva_cli_instance *instance,
                                    const struct kva_config *config, const char *text,
                                    size_t length, struct kva_request **ret, struct kva_err *err)
{
    struct kva_token_list list;
    uint32_t context = instance->engine->limits.context_max;
    kva_token_list_init(&list, context);
    const struct kva_encode_params params = {.add_special = !config->raw, .parse_special = true};
    enum kva_status status =
        kva_tokenizer_encode(instance->tokenizer, text, length, &params, &list, err);
    struct kva_request *request =
        status ? NULL : kva_request_create(((size_t)1 << 20) + 8 * context);
    uint32_t *prompt =
        request ? kva_arena_calloc(&request->arena, list.count + 1, sizeof(*prompt)) : NULL;
    if (!status && !prompt)
        status = kva_fail(err, KVA_ENOMEM, "out of memory for the prompt");
    if (!status && list.count >= context)
        status = kva_fail(err, KVA_ECONTEXT,
                          "the prompt has %zu tokens; with one token of output the limit is %u",
                          list.count, context - 1);
    if (!status && list.count == 0)
        status = kva_fail(err, KVA_EINVAL, "the prompt has no tokens");
    if (status) {
        kva_request_destroy(request);
        kva_token_list_finish(&list);
        return status;
    }
    for (size_t i = 0; i < list.count; i++)
        prompt[i] = (uint32_t)list.ids[i];
    request->prompt = prompt;
    request->prompt_tokens = (uint32_t)list.count;
    request->output_tokens_max = (uint32_t)kva_min_size(config->max_tokens, context - list.count);
    request->choices = 1;
    request->id = 1;
    set_sampling(&request->sampling, config, instance->model);
    kva_token_list_finish(&list);
    request->kv = instance->kv.specs[instance->kv.policy];
    *ret = request;
    return KVA_OK;
}

static void report(const struct printer *printer, uint32_t prompt_tokens)
{
    const struct kva_choice_times *times = &printer->end.end.times;
    uint32_t output = printer->end.end.output_tokens;
    double prefill = (double)(times->first_token_ns - times->submitted_ns) / 1e9;
    double decode = (double)(times->last_token_ns - times->first_token_ns) / 1e9;
    if (!isatty(STDERR_FILENO))
        return;
    fprintf(stderr, "\n[%u prompt tokens in %.2f s, %u output tokens, %.1f tokens/s]\n",
            prompt_tokens, prefill, output, output > 1 && decode > 0 ? (output - 1) / decode : 0.0);
}

static enum kva_status run(const struct kva_cli_instance *instance, const struct kva_config *config,
                           const char *text, size_t length, struct kva_err *err)
{
    struct kva_request *request;
    enum kva_status status = make_request(instance, config, text, length, &request, err);
    if (status)
        return status;
    uint32_t prompt_tokens = request->prompt_tokens;
    struct printer printer = {0};
    kva_detok_init(&printer.detok, instance->tokenizer, true);
    if (length > 0)
        kva_detok_continue(&printer.detok);
    kva_buf_init(&printer.text, 1 << 20);
    const struct kva_scheduler_params params = {
        .engine = instance->engine,
        .clock = kva_clock_real(),
        .running_max = instance->engine->limits.sequences_max,
        .waiting_max = 1,
        .step_tokens_max = instance->engine->limits.step_tokens_max,
        .prefill_share_pct = 100,
        .aging_ns = KVA_NS_PER_S,
        .on_output = on_output,
        .opaque = &printer,
    };
    struct kva_scheduler *scheduler;
    status = kva_scheduler_create(&params, &scheduler, err);
    if (status) {
        kva_request_destroy(request);
        return status;
    }
    status = kva_scheduler_submit(scheduler, request, err);
    if (status)
        kva_request_destroy(request);
    while (!status && !printer.ended) {
        bool idle;
        uint64_t wake_ns;
        status = kva_scheduler_step(scheduler, &idle, &wake_ns, err);
    }
    kva_scheduler_destroy(scheduler);
    if (!status && printer.end.end.reason == KVA_FINISH_ERROR)
        status = kva_fail(err, printer.end.end.status, "generation failed: %s",
                          kva_status_info(printer.end.end.status)->name);
    if (!status) {
        putchar('\n');
        report(&printer, prompt_tokens);
    }
    kva_buf_finish(&printer.text);
    return status;
}

int kva_cli_generate(const struct kva_config *config, const struct kva_string_list *rest)
{
    struct kva_cli_instance instance;
    struct kva_err err;
    size_t length = 0;
    if (config->prompt && rest->count > 0) {
        fprintf(stderr, "kvahead: generate has two texts, --prompt and '%s': which one?\n",
                rest->items[0]);
        return KVA_EXIT_USAGE;
    }
    char *text = config->prompt ? strdup(config->prompt) : kva_cli_text(rest, &length);
    if (!text)
        return KVA_EXIT_USAGE;
    if (config->prompt)
        length = strlen(text);
    enum kva_status status = kva_cli_instance_open(&instance, config, KVA_CLI_TEXTS, NULL, &err);
    if (!status) {
        status = kva_cli_instance_check_head(&instance, &err);
        if (!status)
            status = run(&instance, config, text, length, &err);
        kva_cli_instance_close(&instance);
    }
    free(text);
    return status ? kva_cli_fail(&err) : KVA_EXIT_OK;
}
