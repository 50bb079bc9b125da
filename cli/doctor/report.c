/* report.c - what was found, as text and as JSON. */
#include "cli/doctor/doctor.h"

#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS       100
#define ADVICE_COLUMN 24

static const char *const names[KVA_VERDICT_COUNT] = {"ok", "note", "warn", "fail"};

void kva_findings_add(struct kva_findings *findings, enum kva_verdict verdict, const char *subject,
                      const char *advice, const char *found, ...)
{
    char text[1024];
    va_list list;
    va_start(list, found);
    vsnprintf(text, sizeof(text), found, list);
    va_end(list);
    char *own = strdup(text), *own_advice = advice ? strdup(advice) : NULL;
    if (findings->count == KVA_FINDINGS_MAX || !own || (advice && !own_advice)) {
        free(own);
        free(own_advice);
        findings->lost++;
        return;
    }
    findings->items[findings->count++] = (struct kva_finding){verdict, subject, own, own_advice};
}

void kva_findings_finish(struct kva_findings *findings)
{
    for (uint32_t i = 0; i < findings->count; i++) {
        free(findings->items[i].found);
        free(findings->items[i].advice);
    }
    *findings = (struct kva_findings){0};
}

uint32_t kva_findings_count(const struct kva_findings *findings, enum kva_verdict verdict)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < findings->count; i++)
        count += findings->items[i].verdict == verdict;
    return count;
}

/* Words from a column on, wrapped. */
static void put_wrapped(struct kva_buf *out, const char *text)
{
    size_t column = ADVICE_COLUMN;
    while (*text) {
        size_t length = strcspn(text, " \n");
        if (column > ADVICE_COLUMN && column + 1 + length > COLUMNS) {
            kva_buf_printf(out, "\n%*s", ADVICE_COLUMN, "");
            column = ADVICE_COLUMN;
        } else if (column > ADVICE_COLUMN) {
            kva_buf_putc(out, ' ');
            column++;
        }
        kva_buf_append(out, text, length);
        column += length;
        text += length;
        text += strspn(text, " \n");
    }
    kva_buf_putc(out, '\n');
}

void kva_findings_print(const struct kva_findings *findings, struct kva_buf *out)
{
    for (uint32_t i = 0; i < findings->count; i++) {
        const struct kva_finding *item = &findings->items[i];
        kva_buf_printf(out, "%-5s %-17s ", names[item->verdict], item->subject);
        put_wrapped(out, item->found);
        if (!item->advice)
            continue;
        kva_buf_printf(out, "%*s-> ", ADVICE_COLUMN - 3, "");
        put_wrapped(out, item->advice);
    }
    kva_buf_printf(out, "\n%u to mend, %u to look at\n",
                   kva_findings_count(findings, KVA_VERDICT_FAIL),
                   kva_findings_count(findings, KVA_VERDICT_WARN));
    if (findings->lost > 0)
        kva_buf_printf(out, "%u findings are not shown: out of memory\n", findings->lost);
}

static bool put_finding(cJSON *list, const struct kva_finding *finding)
{
    cJSON *item = cJSON_CreateObject();
    return cJSON_AddItemToArray(list, item) &&
           cJSON_AddStringToObject(item, "verdict", names[finding->verdict]) &&
           cJSON_AddStringToObject(item, "subject", finding->subject) &&
           cJSON_AddStringToObject(item, "found", finding->found) &&
           (finding->advice ? cJSON_AddStringToObject(item, "advice", finding->advice)
                            : cJSON_AddNullToObject(item, "advice"));
}

enum kva_status kva_findings_json(const struct kva_findings *findings, struct kva_buf *out,
                                  struct kva_err *err)
{
    enum kva_verdict worst = KVA_VERDICT_OK;
    cJSON *root = cJSON_CreateObject();
    for (uint32_t i = 0; i < findings->count; i++)
        worst = findings->items[i].verdict > worst ? findings->items[i].verdict : worst;
    bool ok = root && cJSON_AddStringToObject(root, "verdict", names[worst]);
    cJSON *list = ok ? cJSON_AddArrayToObject(root, "findings") : NULL;
    ok = list && findings->lost == 0;
    for (uint32_t i = 0; ok && i < findings->count; i++)
        ok = put_finding(list, &findings->items[i]);
    char *text = ok ? cJSON_Print(root) : NULL;
    cJSON_Delete(root);
    if (!text)
        return kva_fail(err, KVA_ENOMEM, "out of memory for the result");
    kva_buf_printf(out, "%s\n", text);
    cJSON_free(text);
    return KVA_OK;
}
