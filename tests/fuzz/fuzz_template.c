/* Chat templates: compile any bytes, render what compiles. The bytes are a template, and behind a
 * line "----" the variables as JSON. */
#include "tests/fuzz/fuzz.h"

#include "text/template/template.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char mark[] = "\n----\n";
    const char *text = (const char *)data;
    const char *split = size > 0 ? memmem(text, size, mark, sizeof(mark) - 1) : NULL;
    size_t length = split ? (size_t)(split - text) : size;
    struct kva_template *tmpl;
    struct kva_err err;
    if (kva_template_compile(text, length, &tmpl, &err)) {
        /* A failure says why. */
        if (err.message[0] == '\0')
            abort();
        return 0;
    }
    cJSON *extra = NULL;
    if (split)
        extra = cJSON_ParseWithLength(split + sizeof(mark) - 1, size - length - (sizeof(mark) - 1));
    struct kva_template_limits limits = {
        .steps_max = 20000,
        .eval_depth_max = 60,
        .heap_bytes_max = 1u << 20,
        .output_bytes_max = 1u << 16,
        .range_max = 1000,
    };
    struct kva_template_input input = {
        .extra = cJSON_IsObject(extra) ? extra : NULL,
        .bos_token = "<s>",
        .add_generation_prompt = true,
    };
    struct kva_buf out;
    kva_buf_init(&out, 1u << 17);
    if (kva_template_render(tmpl, &input, &limits, &out, &err) && out.length > 0)
        abort();
    kva_buf_finish(&out);
    cJSON_Delete(extra);
    kva_template_destroy(tmpl);
    return 0;
}
