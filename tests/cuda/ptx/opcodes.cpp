/* What each opcode wants for operands. */
#include "decode.h"

#include <algorithm>

namespace ptx
{

void decoder::expect(size_t operands)
{
    if (now.operands.size() != operands)
        fail("%zu operands, where %zu are wanted", now.operands.size(), operands);
}

/* --- what is in the table --------------------------------------------------------------------- */

void decoder::add_table_form(const form &form, instr *ret)
{
    expect(form.sizes.size());
    ret->run = form.run;
    for (size_t i = 0; i < form.sizes.size(); i++)
        push(now.operands[i], form.sizes[i]);
}

/* --- flow ------------------------------------------------------------------------------------- */

bool decoder::add_flow(instr *ret)
{
    if (words[0] == "bra") {
        expect(1);
        ret->kind = flow::BRANCH;
        ret->branch_uniform = words.back() == "uni";
        ret->target = label(now.operands[0]).number;
        return true;
    }
    if (words[0] == "ret" || words[0] == "exit") {
        ret->kind = flow::EXIT;
        return true;
    }
    return false;
}

/* What the lanes of the member mask must have come to. */
void decoder::add_members(std::string_view text, instr *ret)
{
    ret->kind = flow::COLLECTIVE;
    ret->members = (int32_t)own.operands.size();
    push(text, 4);
}

/* bar.sync a[, b], barrier.sync[.aligned]; bar.arrive and bar.red are not known. */
void decoder::add_barrier(instr *ret)
{
    if (now.opcode == "bar.warp.sync") {
        expect(1);
        ret->run = sync_warp;
        add_members(now.operands[0], ret);
        return;
    }
    bool known = now.opcode == "bar.sync" || now.opcode == "barrier.sync" ||
                 now.opcode == "barrier.sync.aligned" || now.opcode == "bar.cta.sync" ||
                 now.opcode == "barrier.cta.sync" || now.opcode == "barrier.cta.sync.aligned";
    if (!known || now.operands.empty() || now.operands.size() > 2)
        fail("a barrier that is not known here");
    ret->kind = flow::BARRIER;
    for (std::string_view operand : now.operands)
        push(operand, 4);
    ret->count = (uint8_t)now.operands.size();
}

/* --- predicates, parts ------------------------------------------------------------------------ */

/* setp.lt[.and].u32 p[|q], a, b[, [!]c] */
void decoder::add_compare(instr *ret)
{
    std::string_view type = words.back(), destination = now.operands[0];
    ret->run = type_bytes(type) && type[0] == 'f' ? real_comparison(words[1], type)
                                                  : integer_comparison(words[1], type);
    std::string_view combine = words.size() > 3 ? words[2] : "";
    if (combine == "and" || combine == "or" || combine == "xor")
        ret->aux = combine == "and" ? COMPARE_AND : combine == "or" ? COMPARE_OR : COMPARE_XOR;
    else if (!combine.empty())
        ret->run = nullptr;
    expect(ret->aux ? 4 : 3);
    size_t bar = destination.find('|');
    push(destination.substr(0, bar), 0);
    push(now.operands[1], type_bytes(type));
    push(now.operands[2], type_bytes(type));
    if (ret->aux) {
        std::string_view third = now.operands[3];
        if (third.starts_with('!')) {
            ret->aux |= COMPARE_NOT_THIRD;
            third.remove_prefix(1);
        }
        push(third, 0);
    }
    if (bar != std::string_view::npos) {
        ret->aux |= COMPARE_SECOND;
        push(destination.substr(bar + 1), 0);
    }
}

void decoder::add_select(instr *ret)
{
    size_t bytes = type_bytes(words[1]);
    expect(4);
    ret->run = bytes < 2 ? nullptr : select_form(bytes);
    for (size_t i = 0; i < 3; i++)
        push(now.operands[i], bytes);
    push(now.operands[3], 0);
}

void decoder::add_predicates(instr *ret)
{
    ret->run = predicate_form(words[0]);
    for (std::string_view operand : now.operands)
        push(operand, 0);
}

/* mov.b64 {a, b}, c and the reverse. */
void decoder::add_parts(instr *ret)
{
    expect(2);
    bool unpack = now.operands[0].starts_with('{');
    std::vector<std::string_view> parts = parts_of(now.operands[unpack ? 0 : 1]);
    size_t bytes = type_bytes(words[1]);
    ret->run = unpack ? unpack_parts : pack_parts;
    ret->count = (uint8_t)parts.size();
    ret->aux = (uint32_t)(bytes / parts.size());
    if (!unpack)
        push(now.operands[0], bytes);
    for (std::string_view part : parts)
        push(part, ret->aux);
    if (unpack)
        push(now.operands[1], bytes);
}

/* cvta: an address of a space made generic, or back. Shared and local memory have windows. */
static void add_window(warp &w, const instr &i, lane_mask mask)
{
    for (lane_mask rest = mask; rest; rest &= rest - 1) {
        unsigned lane = (unsigned)__builtin_ctz(rest);
        uint64_t from = w.lanes<uint64_t>(i.ops[1])[lane];
        w.lanes<uint64_t>(i.ops[0])[lane] = i.aux ? from & ~WINDOW_MASK : from | (uint64_t)i.imm;
    }
    w.define(i.ops[0], mask, w.known(i.ops[1]));
}

static void keep_address(warp &w, const instr &i, lane_mask mask)
{
    for (lane_mask rest = mask; rest; rest &= rest - 1) {
        unsigned lane = (unsigned)__builtin_ctz(rest);
        w.lanes<uint64_t>(i.ops[0])[lane] = w.lanes<uint64_t>(i.ops[1])[lane];
    }
    w.define(i.ops[0], mask, w.known(i.ops[1]));
}

void decoder::add_space_cast(instr *ret)
{
    expect(2);
    ret->aux = words[1] == "to";
    std::string_view space = words[ret->aux ? 2 : 1];
    ret->run = add_window;
    if (space == "global")
        ret->run = keep_address;
    else if (space == "shared")
        ret->imm = (int64_t)SHARED_WINDOW;
    else if (space == "local")
        ret->imm = (int64_t)LOCAL_WINDOW;
    else if (space == "param")
        ret->imm = (int64_t)PARAM_WINDOW;
    else
        ret->run = nullptr;
    push(now.operands[0], 8);
    push(now.operands[1], 8);
}

/* --- memory ----------------------------------------------------------------------------------- */

static const std::map<std::string_view, space> spaces = {
    {"global", space::GLOBAL}, {"shared", space::SHARED},      {"local", space::LOCAL},
    {"param", space::PARAM},   {"shared::cta", space::SHARED},
};

/* What does not change what is loaded or stored, here. */
static bool is_hint(std::string_view word)
{
    static const std::string_view hints[] = {
        "weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "cta", "cluster", "gpu",
        "sys",  "nc",       "ca",      "cg",      "cs",      "lu",      "cv",  "wb",      "wt"};
    return std::find(std::begin(hints), std::end(hints), word) != std::end(hints) ||
           word.starts_with("L1::") || word.starts_with("L2::");
}

void decoder::note_shared_access(space space, size_t bytes)
{
    if (space == space::SHARED || space == space::GENERIC)
        own.granule = std::min<uint32_t>(own.granule, (uint32_t)bytes);
}

/* ld[.space][.v2].u32 and st. */
void decoder::add_memory(instr *ret)
{
    space where = space::GENERIC;
    size_t count = 1, bytes = type_bytes(words.back());
    for (size_t i = 1; i + 1 < words.size(); i++) {
        auto found = spaces.find(words[i]);
        if (found != spaces.end())
            where = found->second;
        else if (words[i] == "v2" || words[i] == "v4")
            count = number_of(words[i].substr(1));
        else if (!is_hint(words[i]))
            fail("'%.*s' is not known here", (int)words[i].size(), words[i].data());
    }
    bool loads = words[0] == "ld";
    expect(2);
    std::vector<std::string_view> parts = parts_of(now.operands[loads ? 0 : 1]);
    if (bytes == 0 || parts.size() != count)
        fail("%zu registers, where %zu are wanted", parts.size(), count);
    size_t register_bytes = bytes;
    for (std::string_view part : parts) {
        size_t own_bytes = 0;
        push(part, std::max<size_t>(bytes, 2), true, &own_bytes);
        if (own_bytes)
            register_bytes = own_bytes;
    }
    ret->run = loads ? load_form(bytes) : store_form(bytes);
    ret->count = (uint8_t)count;
    ret->aux = (uint32_t)register_bytes | (words.back()[0] == 's' ? uint32_t{MEMORY_SIGNED} : 0u) |
               (uint32_t)where << MEMORY_SPACE_SHIFT;
    add_address(now.operands[loads ? 1 : 0], ret, MEMORY_NARROW_BASE);
    note_shared_access(where, bytes);
}

/* atom[.space].add.u32 d, [a], b[, c]; red without d. */
void decoder::add_atomic(instr *ret)
{
    space where = space::GENERIC;
    std::string_view operation;
    for (size_t i = 1; i + 1 < words.size(); i++) {
        auto found = spaces.find(words[i]);
        if (found != spaces.end())
            where = found->second;
        else if (!is_hint(words[i]) && operation.empty())
            operation = words[i];
        else if (!is_hint(words[i]))
            fail("an atomic operation that is not known here");
    }
    size_t bytes = type_bytes(words.back()), next = words[0] == "atom";
    ret->run = atomic_form(operation, words.back());
    ret->aux = (uint32_t)where << MEMORY_SPACE_SHIFT;
    if (next)
        push(now.operands[0], bytes);
    else
        own.operands.push_back({0, NO_REGISTER});
    add_address(now.operands[next++], ret, MEMORY_NARROW_BASE);
    ret->count = (uint8_t)(now.operands.size() - next);
    while (next < now.operands.size())
        push(now.operands[next++], bytes);
    note_shared_access(where, bytes);
}

/* cp.async.ca.shared.global[.L2::128B] [to], [from], bytes[, bytes of the source] */
void decoder::add_copy(instr *ret)
{
    if (words[2] == "commit_group") {
        ret->run = copy_commit;
    } else if (words[2] == "wait_group") {
        ret->run = copy_wait;
        ret->imm = (int64_t)value_of(now.operands[0]);
    } else if (words[2] == "wait_all") {
        ret->run = copy_wait_all;
    } else if ((words[2] == "ca" || words[2] == "cg") && words[3].starts_with("shared") &&
               words[4] == "global" && now.operands.size() >= 3) {
        uint64_t bytes = value_of(now.operands[2]);
        if (bytes != 16 && (words[2] == "cg" || (bytes != 4 && bytes != 8)))
            fail("a copy of %llu bytes", (unsigned long long)bytes);
        ret->run = copy_async;
        ret->count = (uint8_t)bytes;
        add_address(now.operands[0], ret, MEMORY_NARROW_BASE);
        int64_t to = ret->imm;
        add_address(now.operands[1], ret, 0);
        ret->imm = (int64_t)((uint64_t)ret->imm << 32 | (uint32_t)to);
        if (now.operands.size() == 4)
            push(now.operands[3], 4);
        else
            own.operands.push_back({0, NO_REGISTER});
    }
}

/* --- collectives ------------------------------------------------------------------------------ */

/* shfl.sync.bfly.b32 d[|p], a, b, c, members */
void decoder::add_shuffle(instr *ret)
{
    expect(5);
    static const std::map<std::string_view, uint32_t> modes = {
        {"up", SHUFFLE_UP}, {"down", SHUFFLE_DOWN}, {"bfly", SHUFFLE_BFLY}, {"idx", SHUFFLE_IDX}};
    auto mode = modes.find(words[2]);
    if (words[1] != "sync" || mode == modes.end())
        return;
    std::string_view destination = now.operands[0];
    size_t bar = destination.find('|');
    ret->run = shuffle;
    ret->aux = mode->second;
    push(destination.substr(0, bar), 4);
    for (size_t i = 1; i < 4; i++)
        push(now.operands[i], 4);
    add_members(now.operands[4], ret);
    if (bar == std::string_view::npos)
        own.operands.push_back({0, NO_REGISTER});
    else
        push(destination.substr(bar + 1), 0);
}

/* vote.sync.ballot.b32 d, [!]p, members; any, all */
void decoder::add_vote(instr *ret)
{
    expect(3);
    bool ballot = words[2] == "ballot";
    ret->run = ballot              ? vote_ballot
               : words[2] == "any" ? vote_any
               : words[2] == "all" ? vote_all
                                   : nullptr;
    std::string_view predicate = now.operands[1];
    ret->aux = predicate.starts_with('!');
    push(now.operands[0], ballot ? 4 : 0);
    push(predicate.substr(ret->aux), 0);
    add_members(now.operands[2], ret);
}

/* ldmatrix.sync.aligned.m8n8.x4[.trans].shared.b16 {..}, [address] */
void decoder::add_matrix_load(instr *ret)
{
    expect(2);
    std::vector<std::string_view> parts = parts_of(now.operands[0]);
    ret->kind = flow::COLLECTIVE;
    ret->run = words[3] == "m8n8" && words.back() == "b16" ? load_matrix : nullptr;
    ret->count = (uint8_t)parts.size();
    if (std::find(words.begin(), words.end(), "trans") != words.end())
        ret->aux |= MATRIX_TRANSPOSED;
    for (std::string_view part : parts)
        push(part, 4);
    add_address(now.operands[1], ret, MEMORY_NARROW_BASE);
}

void decoder::add_transposition(instr *ret)
{
    expect(2);
    ret->kind = flow::COLLECTIVE;
    ret->run = transpose_matrix;
    push(now.operands[0], 4);
    push(now.operands[1], 4);
}

void decoder::add_product(instr *ret, const matrix_form &form)
{
    expect(4);
    const size_t counts[4] = {form.d, form.a, form.b, form.c};
    ret->kind = flow::COLLECTIVE;
    ret->run = form.run;
    for (size_t i = 0; i < 4; i++) {
        std::vector<std::string_view> parts = parts_of(now.operands[i]);
        if (parts.size() != counts[i])
            fail("%zu registers, where %zu are wanted", parts.size(), counts[i]);
        for (std::string_view part : parts)
            push(part, 4);
    }
}

/* --- all of them ------------------------------------------------------------------------------ */

static void nothing(warp &, const instr &, lane_mask)
{
}

static bool begins(std::string_view opcode, std::initializer_list<const char *> words)
{
    for (const char *word : words) {
        if (opcode.starts_with(word))
            return true;
    }
    return false;
}

void decoder::add_instruction(instr *ret)
{
    std::string name(now.opcode);
    words = split(now.opcode, '.');
    if (words[0] == "cvt" && (words.back() == "u8" || words.back() == "s8"))
        name += "/" + std::to_string(find_register(now.operands.back()).bytes);
    bool in_parts = words[0] == "mov" && now.operands.size() == 2 &&
                    (now.operands[0].starts_with('{') || now.operands[1].starts_with('{'));
    auto in_table = table_of_forms().find(name);
    if (add_flow(ret))
        return;
    if (in_table != table_of_forms().end() && !in_parts)
        return add_table_form(in_table->second, ret);
    if (in_parts)
        add_parts(ret);
    else if (words.back() == "pred" && words[0] != "vote")
        add_predicates(ret);
    else if (words[0] == "setp")
        add_compare(ret);
    else if (words[0] == "selp")
        add_select(ret);
    else if (words[0] == "ld" || words[0] == "st")
        add_memory(ret);
    else if (words[0] == "atom" || words[0] == "red")
        add_atomic(ret);
    else if (words[0] == "cvta")
        add_space_cast(ret);
    else if (words[0] == "bar" || words[0] == "barrier")
        return add_barrier(ret);
    else if (begins(now.opcode, {"cp.async."}))
        add_copy(ret);
    else if (words[0] == "shfl")
        add_shuffle(ret);
    else if (begins(now.opcode, {"vote.sync."}))
        add_vote(ret);
    else if (words[0] == "ldmatrix")
        add_matrix_load(ret);
    else if (now.opcode == "movmatrix.sync.aligned.m8n8.trans.b16")
        add_transposition(ret);
    else if (words[0] == "mma")
        add_product(ret, product_form(now.opcode));
    else if (begins(now.opcode, {"redux.sync."}) && now.operands.size() == 3) {
        ret->run = redux_form(words[2], words.back());
        push(now.operands[0], 4);
        push(now.operands[1], 4);
        add_members(now.operands[2], ret);
    } else if (now.opcode == "activemask.b32") {
        ret->run = active_mask;
        push(now.operands[0], 4);
    } else if (begins(now.opcode, {"membar.", "fence.", "griddepcontrol.", "prefetch"})) {
        ret->run = nothing; /* blocks run one after the other */
    }
    if (!ret->run)
        fail("an opcode that is not known here");
}

} // namespace ptx
