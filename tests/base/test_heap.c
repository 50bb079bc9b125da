#include "tests/cmocka.h"

#include "base/heap.h"

#include <stdlib.h>

#define NODES 500

static void check_heap(const struct kva_heap *heap)
{
    for (uint32_t i = 0; i < heap->count; i++) {
        assert_int_equal(heap->nodes[i]->index, i);
        if (i > 0)
            assert_false(kva_heap_before(heap->nodes[i], heap->nodes[(i - 1) / 2]));
    }
}

static void test_heap__pops_in_order_and_removes_from_anywhere(void **state KVA_UNUSED)
{
    struct kva_heap heap;
    assert_int_equal(kva_heap_init(&heap, NODES), KVA_OK);
    assert_null(kva_heap_peek(&heap));
    struct kva_heap_node nodes[NODES];
    srand(3);
    for (uint32_t round = 0; round < 50; round++) {
        for (uint32_t i = 0; i < NODES; i++) {
            nodes[i] = (struct kva_heap_node){.key = rand() % 40 - 20, .seq = i};
            kva_heap_push(&heap, &nodes[i]);
        }
        check_heap(&heap);
        for (uint32_t i = 0; i < NODES; i++)
            if (rand() % 3 == 0) {
                kva_heap_remove(&heap, &nodes[i]);
                check_heap(&heap);
            }
        struct kva_heap_node last = {.key = INT64_MIN};
        while (heap.count > 0) {
            struct kva_heap_node *node = kva_heap_peek(&heap);
            assert_true(kva_heap_before(&last, node));
            last = *node;
            kva_heap_remove(&heap, node);
        }
    }
    kva_heap_finish(&heap);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heap__pops_in_order_and_removes_from_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
