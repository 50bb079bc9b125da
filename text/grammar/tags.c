/* tags.c - the schemas inside a structural tag, each as rules of its own. */
#include "text/grammar/internal.h"

#include <stdlib.h>
#include <string.h>

static cJSON *get(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

/* Rules as text, which the caller frees. */
static enum kva_status rules_of(const cJSON *schema, bool strict, bool xml,
                                const struct kva_grammar_effort *effort, char **ret,
                                struct kva_err *err)
{
    /* Half, so that one takes not all that there is for the others and the whole. */
    struct kva_xg_limits limits = kva_grammar_left(effort);
    limits.time_ns = limits.time_ns / 2 + limits.time_ns % 2;
    cJSON *tree = cJSON_Duplicate(schema, true);
    enum kva_status status = tree ? kva_grammar_check_tree(tree, xml, err)
                                  : kva_fail(err, KVA_ENOMEM, "out of memory for a schema");
    char *text = status ? NULL : cJSON_PrintUnformatted(tree);
    if (text) {
        const struct kva_xg_source source = {
            .kind = KVA_XG_SCHEMA,
            .text = text,
            .length = strlen(text),
            .strict = strict,
            .whitespace_max = KVA_GRAMMAR_WHITESPACE_MAX,
            .xml = xml,
        };
        struct kva_xg_why why = {""};
        enum kva_xg_status made = kva_xg_rules(&source, &limits, ret, &why);
        if (made == KVA_XG_REFUSED)
            status = kva_grammar_refuse_schema(tree, strict, effort, &why, err);
        else if (made != KVA_XG_OK)
            status = kva_grammar_over_limit(made, effort->limits, err);
    } else if (!status) {
        status = kva_fail(err, KVA_ENOMEM, "out of memory for a schema");
    }
    free(text);
    cJSON_Delete(tree);
    return status;
}

/* Any object, in the place of what cannot be enforced and need not be. */
static enum kva_status any_object(bool xml, const struct kva_grammar_effort *effort, char **ret,
                                  struct kva_err *err)
{
    cJSON *schema = cJSON_Parse("{\"type\":\"object\"}");
    enum kva_status status = rules_of(schema, false, xml, effort, ret, err);
    cJSON_Delete(schema);
    return status;
}

/* The node becomes one of rules. */
static enum kva_status fill_node(cJSON *node, const struct kva_grammar_effort *effort,
                                 struct kva_err *err)
{
    const cJSON *place = get(node, "place");
    const char *name = cJSON_IsString(place) ? place->valuestring : "schema";
    char *rules = NULL;
    struct kva_err why = {.status = KVA_OK};
    bool xml = cJSON_IsTrue(get(node, "xml"));
    enum kva_status status =
        rules_of(get(node, "schema"), cJSON_IsTrue(get(node, "strict")), xml, effort, &rules, &why);
    if (status && status != KVA_ENOMEM && cJSON_IsTrue(get(node, "lax")))
        status = any_object(xml, effort, &rules, &why);
    if (status)
        return kva_fail_param(err, status, name, "%s", why.message);
    cJSON *text = cJSON_CreateString(rules);
    cJSON *type = cJSON_CreateString("grammar");
    free(rules);
    if (!text || !type || !cJSON_ReplaceItemInObjectCaseSensitive(node, "type", type)) {
        cJSON_Delete(type);
        cJSON_Delete(text);
        return kva_fail(err, KVA_ENOMEM, "out of memory for a grammar");
    }
    cJSON_DeleteItemFromObjectCaseSensitive(node, "schema");
    cJSON_DeleteItemFromObjectCaseSensitive(node, "strict");
    cJSON_DeleteItemFromObjectCaseSensitive(node, "lax");
    cJSON_DeleteItemFromObjectCaseSensitive(node, "place");
    cJSON_DeleteItemFromObjectCaseSensitive(node, "xml");
    if (cJSON_AddItemToObject(node, "grammar", text))
        return KVA_OK;
    cJSON_Delete(text);
    return kva_fail(err, KVA_ENOMEM, "out of memory for a grammar");
}

enum kva_status kva_grammar_fill_tags(cJSON *root, const struct kva_grammar_effort *effort,
                                      struct kva_err *err)
{
    const cJSON *type = get(root, "type");
    if (cJSON_IsObject(root) && cJSON_IsString(type) &&
        strcmp(type->valuestring, KVA_GRAMMAR_TAGS_SCHEMA) == 0)
        return fill_node(root, effort, err);
    enum kva_status status = KVA_OK;
    for (cJSON *at = root->child; at && !status; at = at->next)
        status = kva_grammar_fill_tags(at, effort, err);
    return status;
}
