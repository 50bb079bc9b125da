/* template.c - loading, checking and rendering a template. */
#include "text/template/template.h"

#include "base/utf8.h"
#include "text/template/builtins.h"

#include <stdlib.h>
#include <string.h>

void kva_template_limits_default(struct kva_template_limits *limits)
{
    *limits = (struct kva_template_limits){
        .steps_max = KVA_TEMPLATE_STEPS_MAX,
        .eval_depth_max = KVA_TEMPLATE_EVAL_DEPTH_MAX,
        .heap_bytes_max = KVA_TEMPLATE_HEAP_BYTES_MAX,
        .output_bytes_max = KVA_TEMPLATE_OUTPUT_BYTES_MAX,
        .range_max = KVA_TEMPLATE_RANGE_MAX,
    };
}

enum kva_status kva_template_compile(const char *source, size_t length, struct kva_template **ret,
                                     struct kva_err *err)
{
    if (length > KVA_TEMPLATE_SOURCE_BYTES_MAX)
        return kva_fail(err, KVA_EFORMAT, "chat template: %zu bytes, at most %u are allowed",
                        length, KVA_TEMPLATE_SOURCE_BYTES_MAX);
    if (!kva_utf8_valid(source, length))
        return kva_fail(err, KVA_EFORMAT, "chat template: not valid UTF-8");
    struct kva_template *tmpl = calloc(1, sizeof(*tmpl));
    if (!tmpl)
        return kva_fail(err, KVA_ENOMEM, "out of memory compiling a chat template");
    kva_arena_init(&tmpl->arena, KVA_TEMPLATE_AST_BYTES_MAX);
    tmpl->source = kva_arena_strndup(&tmpl->arena, source, length);
    tmpl->source_length = length;
    enum kva_status status = tmpl->source
                                 ? kva_tpl_parse(tmpl, source, length, err)
                                 : kva_fail(err, KVA_ENOMEM, "out of memory for a chat template");
    if (status) {
        kva_template_destroy(tmpl);
        return status;
    }
    *ret = tmpl;
    return KVA_OK;
}

void kva_template_destroy(struct kva_template *tmpl)
{
    if (!tmpl)
        return;
    kva_arena_finish(&tmpl->arena);
    free(tmpl);
}

const char *kva_template_source(const struct kva_template *tmpl, size_t *ret_length)
{
    *ret_length = tmpl->source_length;
    return tmpl->source;
}

bool kva_template_mentions(const struct kva_template *tmpl, const char *name)
{
    return kva_tpl_find_name(tmpl, name, strlen(name)) != UINT32_MAX;
}

/* Give a variable its value, if the template mentions it. */
static void set_global(struct kva_tpl_run *run, const char *name, const struct kva_tpl_value *value)
{
    uint32_t index = kva_tpl_find_name(run->tmpl, name, strlen(name));
    if (index != UINT32_MAX)
        run->globals[index] = *value;
}

static bool mentions(const struct kva_tpl_run *run, const char *name)
{
    return kva_tpl_find_name(run->tmpl, name, strlen(name)) != UINT32_MAX;
}

/* JSON that the template does not mention is not even converted. */
static enum kva_status set_json(struct kva_tpl_run *run, const char *name, const cJSON *json,
                                bool absent_is_none)
{
    struct kva_tpl_value value = kva_tpl_none();
    /* Names are looked for one by one. */
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, run->tmpl->name_count));
    if (!mentions(run, name) || (!json && !absent_is_none))
        return KVA_OK;
    if (json)
        KVA_TPL_TRY(kva_tpl_from_json(run, json, name, &value));
    set_global(run, name, &value);
    return KVA_OK;
}

static enum kva_status set_token(struct kva_tpl_run *run, const char *name, const char *token)
{
    struct kva_tpl_value value;
    if (!token || !mentions(run, name))
        return KVA_OK;
    if (!kva_utf8_valid(token, strlen(token)))
        return kva_fail_param(run->err, KVA_EINVAL, name, "%s is not valid UTF-8", name);
    KVA_TPL_TRY(kva_tpl_borrow(run, token, strlen(token), &value));
    set_global(run, name, &value);
    return KVA_OK;
}

static enum kva_status set_variables(struct kva_tpl_run *run,
                                     const struct kva_template_input *input)
{
    struct kva_tpl_value flag = kva_tpl_bool(input->add_generation_prompt);
    kva_tpl_set_functions(run);
    set_global(run, "add_generation_prompt", &flag);
    KVA_TPL_TRY(set_token(run, "bos_token", input->bos_token));
    KVA_TPL_TRY(set_token(run, "eos_token", input->eos_token));
    KVA_TPL_TRY(set_token(run, "pad_token", input->pad_token));
    KVA_TPL_TRY(set_token(run, "unk_token", input->unk_token));
    KVA_TPL_TRY(set_json(run, "messages", input->messages, false));
    KVA_TPL_TRY(set_json(run, "tools", input->tools, input->absent_is_none));
    KVA_TPL_TRY(set_json(run, "documents", input->documents, input->absent_is_none));
    if (!input->extra)
        return KVA_OK;
    if (!cJSON_IsObject(input->extra))
        return kva_fail_param(run->err, KVA_EINVAL, "chat_template_kwargs",
                              "chat_template_kwargs must be an object");
    for (const cJSON *item = input->extra->child; item; item = item->next) {
        if (item->string)
            KVA_TPL_TRY(set_json(run, item->string, item, false));
    }
    return KVA_OK;
}

static enum kva_status render(struct kva_tpl_run *run, const struct kva_template_input *input)
{
    run->globals = kva_tpl_alloc(run, run->tmpl->name_count, sizeof(*run->globals));
    if (!run->globals)
        return run->err->status;
    for (uint32_t i = 0; i < run->tmpl->name_count; i++)
        run->globals[i].type = KVA_TPL_ABSENT;
    KVA_TPL_TRY(set_variables(run, input));
    return kva_tpl_execute(run, run->tmpl->body);
}

enum kva_status kva_template_render(const struct kva_template *tmpl,
                                    const struct kva_template_input *input,
                                    const struct kva_template_limits *limits, struct kva_buf *out,
                                    struct kva_err *err)
{
    struct kva_template_limits defaults;
    struct kva_err local;
    kva_template_limits_default(&defaults);
    struct kva_tpl_run run = {
        .tmpl = tmpl,
        .limits = limits ? limits : &defaults,
        .err = err ? err : &local,
        .out = out,
        .out_start = out->length,
        .filter_input = kva_tpl_none(),
        .now_unix_s = input->now_unix_s,
        .cancelled = input->control ? input->control->cancelled : NULL,
        .line = 1,
    };
    bool failed_before = out->failed;
    run.err->param[0] = '\0';
    kva_arena_init(&run.heap, run.limits->heap_bytes_max);
    kva_tpl_buf_init(&run, &run.capture);
    enum kva_status status = render(&run, input);
    if (status) {
        /* What did not fit is taken back; a failure that is older stays. */
        out->length = run.out_start;
        out->failed = failed_before;
        if (out->data)
            out->data[out->length] = '\0';
    }
    if (input->control)
        input->control->steps = run.steps;
    kva_buf_finish(&run.capture);
    kva_arena_finish(&run.heap);
    return status;
}
