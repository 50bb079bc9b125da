/* forms.h - what instructions do to the lanes of a warp.
 *
 * A form is an opcode with its types and modifiers: "add.s32". Those that do the same to each lane
 * by itself are in one table, made of a function of a lane's operands; decode.cpp takes the others
 * apart itself. */
#ifndef KVA_TESTS_CUDA_PTX_FORMS_H
#define KVA_TESTS_CUDA_PTX_FORMS_H

#include "machine.h"

#include <tuple>
#include <unordered_map>
#include <utility>

namespace ptx
{

struct form {
    instr_run *run;
    std::vector<uint8_t> sizes; /* of the operands' registers; 0: a predicate */
};

typedef std::unordered_map<std::string, form> form_table;

/* The forms that are in a table; the files below fill it. */
const form_table &table_of_forms();
void add_integer_forms(form_table &table);
void add_real_forms(form_table &table);
void add_conversion_forms(form_table &table);

/* --- lane by lane ----------------------------------------------------------------------------- */

template <auto F, typename D, typename... S, size_t... N>
inline void run_lanes(warp &w, const instr &i, lane_mask mask, std::index_sequence<N...>)
{
    D *to = w.lanes<D>(i.ops[0]);
    std::tuple<const S *...> from = {w.lanes<S>(i.ops[N + 1])...};
    if (mask == ALL_LANES) {
#pragma GCC ivdep
        for (unsigned lane = 0; lane < LANES; lane++)
            to[lane] = F(std::get<N>(from)[lane]...);
    } else {
        for (lane_mask rest = mask; rest; rest &= rest - 1) {
            unsigned lane = (unsigned)__builtin_ctz(rest);
            to[lane] = F(std::get<N>(from)[lane]...);
        }
    }
    w.define(i.ops[0], mask, (ALL_LANES & ... & w.known(i.ops[N + 1])));
}

/* ops: to, from... */
template <auto F, typename D, typename... S> void lanewise(warp &w, const instr &i, lane_mask mask)
{
    run_lanes<F, D, S...>(w, i, mask, std::index_sequence_for<S...>{});
}

template <auto F, typename D, typename... S> form lanewise_form()
{
    return {lanewise<F, D, S...>, {sizeof(D), sizeof(S)...}};
}

/* --- forms that decode.cpp takes apart -------------------------------------------------------- */

/* Comparisons. ops: to, a, b; then what aux says. */
enum : uint32_t {
    COMPARE_AND = 1, /* with the next operand, a predicate */
    COMPARE_OR = 2,
    COMPARE_XOR = 3,
    COMPARE_SECOND = 4,    /* the last operand takes the comparison's opposite */
    COMPARE_NOT_THIRD = 8, /* the predicate is negated */
};
instr_run *integer_comparison(std::string_view comparison, std::string_view type);
instr_run *real_comparison(std::string_view comparison, std::string_view type);
void finish_comparison(warp &w, const instr &i, lane_mask mask, lane_mask result, lane_mask known);

template <auto F, typename T> void compare(warp &w, const instr &i, lane_mask mask)
{
    const T *a = w.lanes<T>(i.ops[1]), *b = w.lanes<T>(i.ops[2]);
    lane_mask result = 0;
    for (unsigned lane = 0; lane < LANES; lane++)
        result |= (lane_mask)F(a[lane], b[lane]) << lane;
    finish_comparison(w, i, mask, result, w.known(i.ops[1]) & w.known(i.ops[2]));
}

/* selp; ops: to, a, b, predicate. bytes of a lane: 2, 4, 8. */
instr_run *select_form(size_t bytes);

/* ops: to, a, b of predicates. aux bits 0, 1: a, b are negated. */
instr_run *predicate_form(std::string_view operation);

/* mov between a register and its parts; ops: the parts, then the whole (or the other way round).
 * `count` parts; aux: bytes of one. A part's operand without a register (`_`): number UINT32_MAX. */
constexpr uint32_t NO_REGISTER = UINT32_MAX;
instr_run pack_parts, unpack_parts;

/* Memory. ops: `count` registers of aux & 15 bytes each, then the base of the address. */
enum : uint32_t {
    MEMORY_REGISTER = 15, /* bytes of a register; the element has the form's */
    MEMORY_SIGNED = 16,
    MEMORY_NARROW_BASE = 32, /* the base has four bytes */
    MEMORY_SPACE_SHIFT = 8,
};
enum class space : uint8_t { GENERIC, GLOBAL, SHARED, LOCAL, PARAM };
instr_run *load_form(size_t element);
instr_run *store_form(size_t element);
/* atom, red; ops: to (none: NO_REGISTER), base, a, b. */
instr_run *atomic_form(std::string_view operation, std::string_view type);

/* ops: base of the destination, of the source, [bytes of the source that count]. aux as above, of
 * the destination; count: bytes. imm: offsets, the source's in the upper half. */
instr_run copy_async, copy_commit, copy_wait, copy_wait_all;

/* Collectives. shfl: ops: to, a, b, c, members, [predicate]; aux: mode. vote: ops: to, predicate,
 * members; aux: 1: negated. */
enum : uint32_t { SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_BFLY, SHUFFLE_IDX };
instr_run shuffle, vote_ballot, vote_any, vote_all, sync_warp, active_mask;
instr_run *redux_form(std::string_view operation, std::string_view type);

/* ldmatrix: ops: `count` registers, base; aux as memory's, and: */
enum : uint32_t { MATRIX_TRANSPOSED = 64 };
instr_run load_matrix, transpose_matrix;
/* ops: d, a, b, c in that order. */
struct matrix_form {
    instr_run *run;
    uint8_t d, a, b, c; /* registers */
};
matrix_form product_form(std::string_view opcode);

} // namespace ptx

#endif
