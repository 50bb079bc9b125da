/* scope.c - the variables of a block, a round of a loop or a call. */
#include "text/template/run.h"

#include <string.h>

enum kva_status kva_tpl_scope_push(struct kva_tpl_run *run, struct kva_tpl_scope *parent)
{
    struct kva_tpl_scope *scope = run->free_scopes;
    if (scope) {
        run->free_scopes = scope->parent;
        scope->count = 0;
    } else {
        scope = kva_tpl_alloc(run, 1, sizeof(*scope));
        if (!scope)
            return run->err->status;
    }
    scope->parent = parent;
    run->scope = scope;
    return KVA_OK;
}

void kva_tpl_scope_pop(struct kva_tpl_run *run, struct kva_tpl_scope *outer)
{
    struct kva_tpl_scope *scope = run->scope;
    run->scope = outer;
    if (scope->captured)
        return;
    scope->parent = run->free_scopes;
    run->free_scopes = scope;
}

void kva_tpl_scope_keep(struct kva_tpl_run *run)
{
    for (struct kva_tpl_scope *scope = run->scope; scope && !scope->captured; scope = scope->parent)
        scope->captured = true;
}

enum kva_status kva_tpl_scope_bind(struct kva_tpl_run *run, uint32_t name,
                                   const struct kva_tpl_value *value)
{
    struct kva_tpl_scope *scope = run->scope;
    if (!scope) {
        run->globals[name] = *value;
        return KVA_OK;
    }
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, scope->count));
    for (uint32_t i = 0; i < scope->count; i++) {
        if (scope->bindings[i].name == name) {
            scope->bindings[i].value = *value;
            return KVA_OK;
        }
    }
    if (scope->count == scope->capacity) {
        uint32_t capacity = scope->capacity ? scope->capacity * 2 : 4;
        struct kva_tpl_binding *bindings = kva_tpl_alloc(run, capacity, sizeof(*bindings));
        if (!bindings)
            return run->err->status;
        if (scope->count > 0)
            memcpy(bindings, scope->bindings, scope->count * sizeof(*bindings));
        scope->bindings = bindings;
        scope->capacity = capacity;
    }
    scope->bindings[scope->count++] = (struct kva_tpl_binding){name, *value};
    return KVA_OK;
}
