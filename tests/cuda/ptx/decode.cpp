/* A kernel's text made into instructions: names into registers and addresses, constants into
 * registers of their own, opcodes into forms. */
#include "decode.h"

#include <algorithm>
#include <charconv>
#include <cstdarg>
#include <cstdio>

namespace ptx
{

static const char *const specials[SPECIAL_COUNT] = {
    "%tid.x",       "%tid.y",       "%tid.z",       "%ntid.x",     "%ntid.y",
    "%ntid.z",      "%ctaid.x",     "%ctaid.y",     "%ctaid.z",    "%nctaid.x",
    "%nctaid.y",    "%nctaid.z",    "%laneid",      "%warpid",     "%lanemask_eq",
    "%lanemask_lt", "%lanemask_le", "%lanemask_gt", "%lanemask_ge"};

void decoder::fail(const char *format, ...)
{
    char what[400];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    std::string operands;
    for (std::string_view operand : now.operands)
        operands += (operands.empty() ? " " : ", ") + std::string(operand);
    simt::defect("%s:%u: %s: %s [%.*s%s]", file.path.c_str(), now.line, own.name.c_str(), what,
                 (int)now.opcode.size(), now.opcode.data(), operands.c_str());
}

/* --- the header, variables -------------------------------------------------------------------- */

/* `.param .u64 name`, `.param .align 8 .b8 name[56]`. */
void decoder::read_params(std::string_view list)
{
    uint32_t offset = 0;
    for (std::string_view words : split(list)) {
        text_file::shared_variable variable = declared(words);
        uint32_t align = (uint32_t)std::max<uint64_t>(variable.align, 1);
        offset = (offset + align - 1) / align * align;
        own.params.push_back({variable.name, offset, (uint32_t)variable.bytes});
        symbols[variable.name] = offset;
        offset += (uint32_t)variable.bytes;
    }
    own.param_bytes = offset;
}

size_t decoder::read_header(size_t entry)
{
    const std::string &text = file.text;
    size_t open = text.find('(', entry), close = text.find(')', open);
    size_t body = text.find('{', entry);
    if (open < body)
        read_params(std::string_view(text).substr(open + 1, close - open - 1));
    std::string_view directives = std::string_view(text).substr(entry, body - entry);
    own.threads_max = 1024;
    for (const char *word : {".maxntid ", ".reqntid "}) {
        size_t at = directives.find(word);
        if (at == std::string_view::npos)
            continue;
        std::string_view sizes = directives.substr(at + 9);
        own.threads_max = 1;
        for (std::string_view size : split(sizes.substr(0, sizes.find('\n'))))
            own.threads_max *= (uint32_t)number_of(size);
    }
    return body;
}

/* Shared memory that the kernel names: variables of a size, then what a launch gives. */
void decoder::place_shared(const std::vector<statement> &body)
{
    std::string all;
    for (const statement &each : body) {
        for (std::string_view operand : each.operands)
            all += std::string(operand) + "\n";
    }
    uint64_t address = SHARED_BASE;
    own.shared_bytes = 0;
    for (const text_file::shared_variable &variable : file.shared) {
        if (variable.dynamic || all.find(variable.name) == std::string::npos)
            continue;
        uint64_t align = std::max<uint64_t>(variable.align, 16);
        address = (address + align - 1) / align * align;
        own.shared.push_back({variable.name, address, variable.bytes});
        symbols[variable.name] = address;
        address += variable.bytes + SHARED_GAP;
        own.shared_bytes =
            (own.shared_bytes + variable.align - 1) / variable.align * variable.align;
        own.shared_bytes += variable.bytes;
    }
    own.dynamic_address = (address + 127) / 128 * 128;
    for (const text_file::shared_variable &variable : file.shared) {
        if (variable.dynamic)
            symbols[variable.name] = own.dynamic_address;
    }
}

void decoder::declare(const statement &directive)
{
    if (directive.opcode == ".reg") {
        std::vector<std::string_view> words = split(directive.rest, ' ');
        size_t bytes = type_bytes(words[0]);
        if (bytes == 0 && words[0] != ".pred")
            fail("registers of a type that is not known here");
        for (size_t i = 1; i < words.size(); i++) {
            for (std::string_view name : split(words[i])) {
                size_t bracket = name.find('<');
                bool range = bracket != std::string_view::npos;
                scope &in = scopes.back();
                if (range)
                    in.ranges[std::string(name.substr(0, bracket))] = (uint8_t)bytes;
                else
                    in.registers[std::string(name)] = new_register(bytes);
            }
        }
    } else if (directive.opcode == ".local") {
        text_file::shared_variable variable = declared(directive.rest);
        uint64_t align = std::max<uint64_t>(variable.align, 16);
        own.local_bytes = (own.local_bytes + align - 1) / align * align;
        symbols[variable.name] = LOCAL_BASE + own.local_bytes;
        own.local_bytes += variable.bytes;
    } else if (directive.opcode != ".shared" && directive.opcode != ".loc" &&
               directive.opcode != ".pragma") {
        fail("a directive that is not known here");
    }
}

/* --- registers and constants ------------------------------------------------------------------ */

decoder::reg decoder::new_register(size_t bytes)
{
    uint32_t size = bytes ? (uint32_t)bytes * LANES : 4;
    if (bytes)
        register_end = (register_end + 63) / 64 * 64;
    reg made = {{register_end, register_count++}, (uint8_t)bytes};
    register_end += size;
    return made;
}

decoder::reg decoder::find_register(std::string_view name)
{
    for (size_t i = scopes.size(); i-- > 0;) {
        auto found = scopes[i].registers.find(std::string(name));
        if (found != scopes[i].registers.end())
            return found->second;
        size_t digits = name.find_last_not_of("0123456789") + 1;
        auto range = scopes[i].ranges.find(std::string(name.substr(0, digits)));
        if (digits < name.size() && range != scopes[i].ranges.end())
            return scopes[i].registers[std::string(name)] = new_register(range->second);
    }
    for (unsigned i = 0; i < SPECIAL_COUNT; i++) {
        if (name == specials[i])
            return {{SPECIAL_TAG + i * 4 * LANES, SPECIAL_TAG + i}, 4};
    }
    fail("no register %.*s", (int)name.size(), name.data());
}

/* A register all of whose lanes have the value. */
operand decoder::constant(uint64_t value, size_t bytes)
{
    auto key = std::make_pair(value, bytes);
    auto found = constants.find(key);
    if (found != constants.end())
        return found->second;
    std::vector<unsigned char> &data = own.constants;
    operand made = {CONSTANT_TAG + (uint32_t)data.size(), CONSTANT_TAG + constant_count++};
    if (bytes == 0) {
        lane_mask mask = value ? ALL_LANES : 0;
        data.insert(data.end(), (unsigned char *)&mask, (unsigned char *)&mask + 4);
        data.resize((data.size() + 63) / 64 * 64);
    }
    for (unsigned lane = 0; bytes && lane < LANES; lane++)
        data.insert(data.end(), (unsigned char *)&value, (unsigned char *)&value + bytes);
    data.resize((data.size() + 63) / 64 * 64);
    return constants[key] = made;
}

/* 12, -1, 0x1F, 12U, 0f3F800000, 0d3FF0000000000000, a symbol, or a symbol and a number. */
uint64_t decoder::value_of(std::string_view text)
{
    uint64_t value = 0;
    if (text.starts_with("0f") || text.starts_with("0F") || text.starts_with("0d") ||
        text.starts_with("0D")) {
        std::from_chars(text.data() + 2, text.data() + text.size(), value, 16);
        return value;
    }
    bool negative = text.starts_with('-');
    std::string_view digits = negative ? text.substr(1) : text;
    if (!digits.empty() && isdigit((unsigned char)digits[0])) {
        bool hex = digits.starts_with("0x") || digits.starts_with("0X");
        std::from_chars(digits.data() + (hex ? 2 : 0), digits.data() + digits.size(), value,
                        hex ? 16 : 10);
        return negative ? 0 - value : value;
    }
    size_t plus = text.find('+');
    auto symbol = symbols.find(std::string(text.substr(0, plus)));
    if (symbol == symbols.end())
        fail("no symbol %.*s", (int)text.size(), text.data());
    return symbol->second + (plus == std::string_view::npos ? 0 : value_of(text.substr(plus + 1)));
}

/* A source or destination of this size; `wider`: or of a larger one. */
operand decoder::operand_of(std::string_view text, size_t bytes, bool wider, size_t *ret_bytes)
{
    if (text.starts_with('!'))
        fail("a negated operand");
    if (text == "_")
        return {0, NO_REGISTER};
    if (text == "true" || text == "false")
        return constant(text == "true", 0);
    if (text.starts_with('%') || is_local_name(text)) {
        reg found = find_register(text);
        if (found.bytes != bytes && !(wider && found.bytes > bytes))
            fail("the register %.*s has %u bytes, where %zu are wanted", (int)text.size(),
                 text.data(), found.bytes, bytes);
        if (ret_bytes)
            *ret_bytes = found.bytes;
        return found.where;
    }
    if (ret_bytes)
        *ret_bytes = bytes;
    uint64_t value = value_of(text);
    return constant(bytes >= 8 || bytes == 0 ? value : value & (((uint64_t)1 << 8 * bytes) - 1),
                    bytes);
}

/* Names of inline assembly need no %. */
bool decoder::is_local_name(std::string_view text)
{
    for (const scope &each : scopes) {
        if (each.registers.count(std::string(text)))
            return true;
    }
    return false;
}

/* [%rd1+16], [%r2], [name+8]. */
void decoder::add_address(std::string_view text, instr *ret, uint32_t narrow_flag)
{
    if (!text.starts_with('[') || !text.ends_with(']'))
        fail("an address is wanted");
    text = trim(text.substr(1, text.size() - 2));
    size_t sign = text.find_first_of("+-", 1);
    std::string_view base = trim(text.substr(0, sign));
    ret->imm = 0;
    if (base.starts_with('%') || is_local_name(base)) {
        reg found = find_register(base);
        if (found.bytes != 4 && found.bytes != 8)
            fail("an address of %u bytes", found.bytes);
        if (found.bytes == 4)
            ret->aux |= narrow_flag;
        own.operands.push_back(found.where);
    } else {
        own.operands.push_back(constant(value_of(base), 8));
    }
    if (sign != std::string_view::npos) {
        bool negative = text[sign] == '-';
        int64_t offset = (int64_t)value_of(trim(text.substr(sign + 1)));
        ret->imm = negative ? -offset : offset;
    }
}

/* {a, b} or one. */
std::vector<std::string_view> decoder::parts_of(std::string_view text)
{
    if (!text.starts_with('{'))
        return {text};
    return split(text.substr(1, text.size() - 2));
}

/* --- the body --------------------------------------------------------------------------------- */

void decoder::add(const statement &statement)
{
    now = statement;
    instr made = {};
    first_operand = own.operands.size();
    made.guard = made.members = -1;
    made.line = now.line;
    made.file = now.file;
    made.source_line = now.source_line;
    made.kind = flow::NEXT;
    auto form = forms.try_emplace(std::string(now.opcode), (uint32_t)own.forms.size());
    if (form.second)
        own.forms.push_back(std::string(now.opcode));
    made.form = form.first->second;
    add_instruction(&made);
    if (!now.guard.empty()) {
        made.guard_not = now.guard[0] == '!';
        made.guard = (int32_t)own.operands.size();
        own.operands.push_back(operand_of(now.guard.substr(made.guard_not), 0));
    }
    made.ops = reinterpret_cast<const operand *>(first_operand);
    own.code.push_back(made);
}

/* Tags become places: special registers behind the others, constants behind them. */
void decoder::finish()
{
    own.special_at = (register_end + 63) / 64 * 64;
    own.special_number = register_count;
    own.constants_at = own.special_at + SPECIAL_COUNT * 4 * LANES;
    own.constant_number = register_count + SPECIAL_COUNT;
    own.register_bytes = own.constants_at + (uint32_t)own.constants.size();
    own.register_count = own.constant_number + constant_count;
    for (operand &each : own.operands) {
        if (each.number == NO_REGISTER)
            continue;
        if (each.number >= CONSTANT_TAG)
            each = {each.at - CONSTANT_TAG + own.constants_at,
                    each.number - CONSTANT_TAG + own.constant_number};
        else if (each.number >= SPECIAL_TAG)
            each = {each.at - SPECIAL_TAG + own.special_at,
                    each.number - SPECIAL_TAG + own.special_number};
    }
    for (instr &each : own.code) {
        const size_t first = reinterpret_cast<size_t>(each.ops);
        each.ops = own.operands.data() + first;
        each.guard -= each.guard < 0 ? 0 : (int32_t)first;
        each.members -= each.members < 0 ? 0 : (int32_t)first;
        if (each.kind == flow::BRANCH)
            each.target = label_at(each.target);
    }
}

/* `number`: in the order in which labels were named. */
uint32_t decoder::label_at(uint32_t number)
{
    for (const auto &each : labels) {
        if (each.second.number == number && each.second.known)
            return each.second.pc;
    }
    simt::defect("%s: a branch to a label that is not there", own.name.c_str());
}

void decoder::run(size_t entry)
{
    size_t body = read_header(entry);
    body_reader reader(file, body + 1);
    std::vector<statement> statements;
    for (int depth = 1; depth > 0;) {
        statements.push_back(reader.next());
        auto kind = statements.back().kind;
        depth += (kind == statement::OPEN) - (kind == statement::CLOSE);
        if (kind == statement::END)
            simt::defect("%s: %s does not end", file.path.c_str(), own.name.c_str());
    }
    statements.pop_back();
    place_shared(statements);
    own.granule = 4;
    scopes.resize(1);
    for (const statement &each : statements) {
        now = each;
        if (each.kind == statement::OPEN)
            scopes.push_back({});
        else if (each.kind == statement::CLOSE)
            scopes.pop_back();
        else if (each.kind == statement::DIRECTIVE)
            declare(each);
        else if (each.kind == statement::LABEL)
            label(each.opcode).pc = (uint32_t)own.code.size(), label(each.opcode).known = true;
        else
            add(each);
    }
    finish();
}

decoder::label_place &decoder::label(std::string_view name)
{
    auto made =
        labels.try_emplace(std::string(name), label_place{(uint32_t)labels.size(), 0, false});
    return made.first->second;
}

std::unique_ptr<kernel> decode(const text_file &file, const std::string &name)
{
    std::unique_ptr<kernel> own(new kernel());
    own->name = name;
    own->file = &file;
    decoder(file, *own).run(file.entries.at(name));
    return own;
}

} // namespace ptx
