/* What is looked at, against plain loops in double precision over made-up queries and keys, and
 * where the answer is known: with all columns everything is found. */
#include "tests/cmocka.h"

#include "engine/calibrate/look.h"
#include "tests/engine/fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "tests/golden/families/llama3_gqa_bf16"

enum { WINDOW = 192, ROWS = 64 };

struct made {
    struct fixture f;
    const struct kva_model_config *c;
    struct kva_pool *pool;
    struct kva_skew *skew;
    float *hidden[3]; /* [WINDOW][hidden_size]: input, attended, output */
    float *q, *k;     /* of layer 1 */
};

static float *noise(size_t count, uint32_t seed, float scale)
{
    float *numbers = malloc(count * sizeof(*numbers));
    uint64_t state = seed;
    assert_non_null(numbers);
    for (size_t i = 0; i < count; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        numbers[i] = scale * ((float)(state >> 40) / (float)(1 << 23) - 1);
    }
    return numbers;
}

/* Bases that reverse the order of the columns. */
static void make(struct made *m)
{
    struct kva_err err = {0};
    fixture_open(&m->f, &(struct fixture_params){.model_path = MODEL, .step_tokens_max = ROWS});
    const struct kva_model_config *c = m->c = &m->f.model->config;
    assert_int_equal(kva_pool_create(3, &m->pool, &err), KVA_OK);
    assert_int_equal(kva_skew_create(c->layer_count, c->kv_heads, c->head_dim, &m->skew, &err),
                     KVA_OK);
    const uint32_t d = c->head_dim;
    for (uint32_t layer = 0; layer < c->layer_count; layer++) {
        for (uint32_t head = 0; head < c->kv_heads; head++) {
            for (uint32_t i = 0; i < d; i++) {
                m->skew
                    ->basis[kva_skew_basis_at(m->skew, layer, head) + (size_t)i * d + d - 1 - i] =
                    1;
                m->skew->energy[kva_skew_columns_at(m->skew, layer, head) + i] =
                    (float)((i * 5 + head) % d);
            }
        }
    }
    kva_skew_sort(m->skew);
    for (uint32_t i = 0; i < 3; i++)
        m->hidden[i] = noise((size_t)WINDOW * c->hidden_size, 10 + i, 1);
    m->q = noise((size_t)WINDOW * c->heads * d, 20, 3);
    m->k = noise((size_t)WINDOW * c->kv_heads * d, 21, 3);
}

static void drop(struct made *m)
{
    for (uint32_t i = 0; i < 3; i++)
        free(m->hidden[i]);
    free(m->q);
    free(m->k);
    kva_skew_destroy(m->skew);
    kva_pool_destroy(m->pool);
    fixture_close(&m->f);
}

/* The window through layers 0 and 1, in chunks; both have the same queries and keys. */
static struct kva_look *looked(struct made *m, uint32_t columns)
{
    const struct kva_model_config *c = m->c;
    struct kva_err err = {0};
    struct kva_look *look;
    struct kva_look_params params = {.device = m->f.device,
                                     .model = m->f.model,
                                     .pool = m->pool,
                                     .window_tokens = WINDOW,
                                     .step_tokens = ROWS,
                                     .columns = columns};
    for (uint32_t i = 0; i < KVA_SKEW_METHOD_COUNT; i++)
        params.skews[i] = m->skew;
    assert_int_equal(kva_look_create(&params, &look, &err), KVA_OK);
    for (uint32_t layer = 0; layer < 2; layer++) {
        for (uint32_t first = 0; first < WINDOW; first += ROWS) {
            const struct kva_kv_rows rows = {.position_first = first, .row_count = ROWS};
            struct kva_forward_layer_view view = {
                .layer = layer, .sequences = &rows, .sequence_count = 1, .rows = ROWS};
            static const uint32_t hidden_of[] = {[KVA_POINT_INPUT] = 0,
                                                 [KVA_POINT_QUERIES] = 0,
                                                 [KVA_POINT_ATTENDED] = 1,
                                                 [KVA_POINT_OUTPUT] = 2};
            for (uint32_t point = KVA_POINT_INPUT; point <= KVA_POINT_OUTPUT; point++) {
                view.point = (enum kva_forward_point)point;
                view.hidden = m->hidden[hidden_of[point]] + (size_t)first * c->hidden_size;
                view.q = m->q + (size_t)first * c->heads * c->head_dim;
                view.k = m->k + (size_t)first * c->kv_heads * c->head_dim;
                kva_look_at(look, &view);
            }
        }
    }
    return look;
}

static double cosine(const struct made *m, uint32_t row, const float *less, const float *of)
{
    const uint32_t count = m->c->hidden_size;
    double xx = 0, yy = 0, xy = 0;
    for (uint32_t i = 0; i < count; i++) {
        const size_t at = (size_t)row * count + i;
        const double x = (double)of[at] - (less ? (double)less[at] : 0);
        const double y = (double)m->hidden[2][at];
        xx += x * x;
        yy += y * y;
        xy += x * y;
    }
    return xy / sqrt(xx * yy);
}

static void test_look__cosines_are_those_of_plain_loops(void **state KVA_UNUSED)
{
    struct made m;
    make(&m);
    struct kva_look *look = looked(&m, 4);
    const struct kva_look_layer *l = &kva_look_layers(look)[1];
    double input = 0, attention = 0, mlp = 0;
    for (uint32_t row = 0; row < WINDOW; row++) {
        input += cosine(&m, row, NULL, m.hidden[0]);
        attention += cosine(&m, row, m.hidden[0], m.hidden[1]);
        mlp += cosine(&m, row, m.hidden[1], m.hidden[2]);
    }
    assert_int_equal(l->rows, WINDOW);
    assert_true(fabs(l->input - input) < 1e-9 * WINDOW);
    assert_true(fabs(l->attention - attention) < 1e-9 * WINDOW);
    assert_true(fabs(l->mlp - mlp) < 1e-9 * WINDOW);
    assert_int_equal(kva_look_layers(look)[0].rows, 0);
    kva_look_destroy(look);
    drop(&m);
}

/* --- what is found ---------------------------------------------------------------------------- */

/* Product of a sample's query and a key over the columns that `order` begins with. */
static double product(const struct made *m, uint32_t position, uint32_t head, uint32_t token,
                      const uint32_t *order, uint32_t columns)
{
    const struct kva_model_config *c = m->c;
    const uint32_t d = c->head_dim, kv_head = head / (c->heads / c->kv_heads);
    const float *q = m->q + ((size_t)position * c->heads + head) * d;
    const float *k = m->k + ((size_t)token * c->kv_heads + kv_head) * d;
    double sum = 0;
    for (uint32_t i = 0; i < columns; i++)
        sum += (double)q[order[i]] * (double)k[order[i]];
    return sum * (double)c->attend_scale;
}

/* Recall and mass of one query; false: it has no candidates. */
static bool found_of(const struct made *m, uint32_t position, uint32_t head, bool away,
                     const uint32_t *order, uint32_t columns, double *ret_recall, double *ret_mass)
{
    const uint32_t first = away ? KVA_LOOK_SINKS : 0, end = position + 1;
    const uint32_t last = !away ? end : end > KVA_LOOK_NEWEST ? end - KVA_LOOK_NEWEST : 0;
    uint32_t natural[128], wanted = 0, hits = 0;
    double most = -INFINITY, sum = 0, mass = 0;
    for (uint32_t i = 0; i < m->c->head_dim; i++)
        natural[i] = i;
    for (uint32_t t = first; t < last; t++)
        most = fmax(most, product(m, position, head, t, natural, m->c->head_dim));
    for (uint32_t t = first; t < last; t++)
        wanted += product(m, position, head, t, natural, m->c->head_dim) >= most - 4;
    for (uint32_t t = first; t < last; t++) {
        const double exact = product(m, position, head, t, natural, m->c->head_dim);
        const double own = product(m, position, head, t, order, columns);
        uint32_t above = 0;
        for (uint32_t u = first; u < last; u++)
            above += product(m, position, head, u, order, columns) > own;
        sum += exp(exact - most);
        mass += above < wanted ? exp(exact - most) : 0;
        hits += above < wanted && exact >= most - 4;
    }
    *ret_recall = (double)hits / wanted;
    *ret_mass = mass / sum;
    return last > first;
}

/* Pairs of columns that are rotated together, by what both have. */
static void order_planes(const struct kva_model_config *c, const float *energy, uint32_t *order)
{
    const uint32_t half = c->head_dim / 2;
    assert_int_equal(c->rope.rotary_dim, c->head_dim);
    for (uint32_t i = 0; i < half; i++) {
        uint32_t rank = 0;
        for (uint32_t j = 0; j < half; j++) {
            const float own = energy[i] + energy[half + i], other = energy[j] + energy[half + j];
            rank += other > own || (!(own > other) && j < i);
        }
        order[2 * rank] = i;
        order[2 * rank + 1] = half + i;
    }
}

static void test_look__found_is_what_plain_loops_find(void **state KVA_UNUSED)
{
    enum { COLUMNS = 5 };
    struct made m;
    make(&m);
    struct kva_look *look = looked(&m, COLUMNS);
    const struct kva_model_config *c = m.c;
    static const enum kva_look_basis bases[] = {KVA_LOOK_NONE, KVA_LOOK_PLANES, KVA_LOOK_FIRST};
    uint32_t reversed[128], planes[128];
    for (uint32_t i = 0; i < c->head_dim; i++)
        reversed[i] = c->head_dim - 1 - i;
    for (uint32_t b = 0; b < KVA_COUNT_OF(bases); b++) {
        const uint32_t columns = bases[b] == KVA_LOOK_PLANES ? COLUMNS / 2 * 2 : COLUMNS;
        for (int away = 0; away < 2; away++) {
            const struct kva_look_found *found =
                &kva_look_layers(look)[1].found[bases[b]][KVA_LOOK_OWN][away];
            double recall = 0, mass = 0;
            uint64_t count = 0;
            for (uint32_t i = 0; i < KVA_LOOK_SAMPLES; i++) {
                const uint32_t position = (i + 1) * WINDOW / KVA_LOOK_SAMPLES - 1;
                for (uint32_t head = 0; head < c->heads; head++) {
                    const uint32_t kv_head = head / (c->heads / c->kv_heads);
                    const size_t at = kva_skew_columns_at(m.skew, 1, kv_head);
                    const uint32_t *order = bases[b] == KVA_LOOK_NONE    ? m.skew->columns + at
                                            : bases[b] == KVA_LOOK_FIRST ? reversed
                                                                         : planes;
                    order_planes(c, m.skew->energy + at, planes);
                    double one, other;
                    if (!found_of(&m, position, head, away, order, columns, &one, &other))
                        continue;
                    recall += one;
                    mass += other;
                    count++;
                }
            }
            assert_int_equal(found->count, count);
            /* In floats two products may change places. */
            assert_true(fabs(found->recall - recall) < 1e-3 * (double)count);
            assert_true(fabs(found->mass - mass) < 1e-3 * (double)count);
        }
    }
    kva_look_destroy(look);
    drop(&m);
}

static void test_look__all_columns_find_everything(void **state KVA_UNUSED)
{
    struct made m;
    make(&m);
    struct kva_look *look = looked(&m, m.c->head_dim);
    for (uint32_t basis = 0; basis < KVA_LOOK_BASES; basis++) {
        for (uint32_t candidates = 0; candidates < KVA_LOOK_CANDIDATES; candidates++) {
            const struct kva_look_found *found =
                &kva_look_layers(look)[1].found[basis][KVA_LOOK_OWN][candidates];
            assert_true(found->count > 0);
            assert_true(found->recall > 0.999 * (double)found->count);
        }
    }
    kva_look_destroy(look);
    drop(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_look__cosines_are_those_of_plain_loops),
        cmocka_unit_test(test_look__found_is_what_plain_loops_find),
        cmocka_unit_test(test_look__all_columns_find_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
